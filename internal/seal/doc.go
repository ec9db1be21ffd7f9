// Package seal makes texts that only this gateway's pods can read or make: session
// ids, kept credentials, sign-in cookies, requests that one pod passes to another.
// Every purpose has keys of its own, so a text sealed for one purpose opens for no
// other.
//
// It must not know what it seals.
package seal
