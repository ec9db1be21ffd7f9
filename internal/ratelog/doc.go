// Package ratelog writes log lines at a bounded rate: whoever may cause them from
// outside, such as a caller that is refused, must neither fill the disk nor hide the
// other lines. What is left out is counted, and the count is written.
//
// It must not know what the lines are about.
package ratelog
