// Package principal says for whom a request speaks. gateway/identity makes
// principals; session and texproxy bind sessions and jobs to them.
//
// It must not know HTTP or the forms of credentials.
package principal
