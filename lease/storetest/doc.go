// Package storetest holds what every lease.Store is judged by: one contract
// suite, and a reference implementation in memory. It is imported by tests
// only and knows neither MongoDB nor bbolt.
package storetest
