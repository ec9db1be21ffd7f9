// Package realtex proves TeX leases on real documents: gateway processes in
// front of the TeX test services, which run real pdflatex. It holds tests only
// (build tag external).
package realtex
