// Package credential describes how an upstream is called: its base URL, and the
// credential of the gateway's own. Server documents and the TeX services of
// gateway.yaml share it. It does not know what the upstream is, and resolves no
// secret.
package credential
