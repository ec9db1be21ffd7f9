// Package sessionid is the id of a session as its client has it: sealed, so that any
// pod reads from it all that it needs to go on with the session, and nobody else
// anything. It knows no session that is under way.
package sessionid
