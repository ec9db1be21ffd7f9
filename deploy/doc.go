// Package deploy holds the files that run the gateway elsewhere: alert rules and
// a dashboard, a compose file, a Helm chart with the manifest that is rendered from
// it, and a systemd unit. Its tests read them strictly, since nothing here can run
// them: an unknown key, a selector that selects nothing or a configuration that
// `serve` would refuse fails. The chart's tests are a module of their own, helmtest.
package deploy
