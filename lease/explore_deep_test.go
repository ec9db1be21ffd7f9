//go:build explore

package lease_test

const defaultPreemptions = 3
