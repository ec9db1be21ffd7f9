// Package telemetry holds the gateway's metrics and its audit log. It implements
// the observers that lease, session and texproxy declare, which is why it stands
// above them; only cmd imports it.
//
// Labels carry names from gateway.yaml, system and bundled documents only, never a
// tenant, project or user (spec §8). It must not decide anything: whoever observes
// an event has decided already.
package telemetry
