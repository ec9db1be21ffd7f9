package mongostore

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// unreachedError says which servers could not be reached, and why each. The
// driver's own text begins with the caller's deadline, which is no cause.
type unreachedError struct {
	servers string
	err     error
}

func (e *unreachedError) Error() string { return "no server answers: " + e.servers }
func (e *unreachedError) Unwrap() error { return e.err }

// reached gives an error of the driver as people need it: where no server was
// found, the addresses and what happened there. A connection string's user and
// password are no part of it.
func reached(err error) error {
	var none topology.ServerSelectionError
	if !errors.As(err, &none) || len(none.Desc.Servers) == 0 {
		return err
	}
	each := make([]string, 0, len(none.Desc.Servers))
	for _, s := range none.Desc.Servers {
		why := "it takes no writes"
		switch {
		case s.LastError != nil:
			why = s.LastError.Error()
		case s.Kind == 0:
			why = "it has not answered yet"
		}
		each = append(each, fmt.Sprintf("%s (%s)", s.Addr, why))
	}
	return &unreachedError{strings.Join(each, ", "), err}
}
