package lease

// faults switch single safeguards off, so that tests can show that they would
// notice. All are false outside tests. Safeguards that lie in a store verb's
// condition are switched off by wrappers around the Store instead.
type faults struct {
	RollbackUnderCaller  bool // the caller's expired context ends the rollback too
	RollbackFromMemory   bool // decrements what memory lists, whether or not the delete matched
	RollbackSkipped      bool // a failed acquire leaves its holder to the reaper
	TrustsListing        bool // the state of a mark is taken from the listing
	ForgetsOwnPod        bool // the own pod is judged by its registration like any other
	NoGrace              bool // an outage of the store counts against leases and pods
	HandledBeforeRun     bool // handledAt is set before the handler has run
	MarksNotDispatched   bool // a reap gives the slot back and tells nobody
	NoAdoption           bool // jobs of a dead pod are reaped
	UnconfirmedDeletable bool // a release after an unconfirmed close deletes
	SkipsLevelsNoScope   bool // a capped level without its scope is passed through
	AcquiresUnregistered bool // takes leases before the registration was seen
	NewcomersBarge       bool // a newcomer tries before those who wait
	ReleaseWakesNobody   bool // local waiters learn of a release by their next look
	LooksBackOff         bool // the pause between looks doubles; tests put that in place of the jitter
	SweepsAtEachLook     bool // a lazy sweep goes with every look
	UnreachableStays     bool // the mark of a pod that cannot be reached waits for that pod
	SafeUntilNoBeat      bool // SafeUntil does not know that a pod out of touch is reaped
	SafeUntilNoSafety    bool // SafeUntil takes all clocks to run equally fast
	AuditsAtFirstSight   bool // an audit begins with the first drift that a pass sees
	NoopSeesOwnPod       bool // an acquire makes sure of the registration before it looks at the caps
}
