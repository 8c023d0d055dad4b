package once

import (
	"errors"
	"fmt"
	"time"
)

// What a call may end with, for errors.Is. The text of each is its word in the server's problems.
var (
	ErrKeyMissing       = errors.New("key-missing")       // No key. Nothing ran.
	ErrInProgress       = errors.New("in-progress")       // Another caller runs it, and did not finish within Wait.
	ErrKeyReused        = errors.New("key-reused")        // The key was used with another payload.
	ErrOutcomeUnknown   = errors.New("outcome-unknown")   // It began, and its outcome is not known: an operator decides.
	ErrClaimLost        = errors.New("claim-lost")        // The lease ended while the work ran, and no result is stored.
	ErrUnavailable      = errors.New("unavailable")       // No server, or no store. Nothing ran, unless Claim.Check returned it.
	ErrUnrecorded       = errors.New("unrecorded")        // The work ran, and its end could not be recorded within a lease.
	ErrRefused          = errors.New("refused")           // The server refused a request. The text says whether the work ran.
	ErrStoredFailure    = errors.New("failed")            // It failed before, and that is its result: see StoredFailure.
	ErrResultNotKept    = errors.New("result-not-kept")   // It ran; its result was too large to keep, or was not JSON.
	ErrResultUnreadable = errors.New("result-unreadable") // It ran; its result is not what this function can read.
	ErrStepReused       = errors.New("step-reused")       // A step's name is used once.
	ErrTooLarge         = errors.New("too-large")         // The record has no room for this step.
)

// Error is what this package returns. Kind is one of the above.
type Error struct {
	Kind       error
	Message    string
	RetryAfter time.Duration  // Of ErrInProgress.
	Status     int            // Of ErrRefused.
	Failure    *StoredFailure // Of ErrStoredFailure.
}

func (e *Error) Error() string { return "once: " + e.Message }
func (e *Error) Unwrap() error { return e.Kind }

// StoredFailure is a failure that is replayed.
type StoredFailure struct {
	Code        string
	Message     string
	Result      []byte
	ContentType string
}

func fail(kind error, format string, arguments ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, arguments...)}
}

// unreachable says that a request had no answer; it may have been carried out. fatal: trying again soon is of no use.
type unreachable struct {
	message string
	fatal   bool
}

func (e *unreachable) Error() string { return e.message }
