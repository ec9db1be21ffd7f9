package session

func runTestChild() int { return 0 }
