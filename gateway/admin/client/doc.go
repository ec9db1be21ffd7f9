// Package client calls the operators' half of the admin API of a pod. It speaks
// the forms of gateway/admin/view and turns refusals back into view.Error by their
// code, so that a caller need not know whether it asked a view or a pod.
//
// It must not know configuration files, stores or how answers are printed.
package client
