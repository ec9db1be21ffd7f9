// Package imagetest builds the images of the Dockerfile and runs them through the
// lines of README.md, with crun in Docker's place. It knows no configuration but
// what init writes.
package imagetest
