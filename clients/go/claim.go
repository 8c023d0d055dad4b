package once

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// NotKept is the type of a result that could not be kept. Its bytes say why, for people.
const NotKept = "application/vnd.once.not-kept"

const maxResultBytes = 2 << 20

// Result is a stored result.
type Result struct {
	Body        []byte
	ContentType string
}

// Claim is the right to run the operation. It is renewed until it ends.
type Claim struct {
	Scope       string
	Key         string
	Attempt     int64             // 1, or more if attempts before it did not finish.
	Token       int64             // The fencing token. It grows with each attempt: for whatever can refuse an older one.
	DerivedKeys map[string]string // Keys for services downstream, the same in each attempt: see Derive.

	client *Client
	id     string
	lease  time.Duration
	stop   context.CancelFunc // Of the renewals.
	lose   context.CancelCauseFunc
	lost   context.Context // Done with ErrClaimLost as its cause.

	// Of Commit.
	isOfWork         bool // Of Func or Call: its result is JSON.
	storedKey, owner string
	retention        time.Duration
	maxDuration      time.Duration
	inDoubt          []byte // The result of a transaction that may have been committed.
	isUnseen         bool   // The work's connection did not find the claim. The server may.

	mutex      sync.Mutex
	validUntil time.Duration // Of uptime().
	steps      map[string]json.RawMessage
	hasEnded   bool
}

func (c *Claim) path(word string) string { return "/v1/claims/" + url.PathEscape(c.id) + "/" + word }

// ValidFor is how long the claim is certainly ours, without another renewal.
func (c *Claim) ValidFor() time.Duration {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return max(0, c.validUntil-uptime())
}

// Lost is closed when the claim is known to be lost.
func (c *Claim) Lost() <-chan struct{} { return c.lost.Done() }

func (c *Claim) errLost() error {
	return fail(ErrClaimLost, "the claim of %q was lost while the work ran, and no result is stored; look what the work has done", c.Key)
}

func (c *Claim) renew(ctx context.Context, note string, timeout time.Duration) error {
	var body []byte
	if note != "" {
		body, _ = json.Marshal(map[string]string{"note": note}) // Texts can be encoded.
	}
	sent := uptime()
	got, err := c.client.send(ctx, "POST", c.path("renew"), body, jsonType, timeout)
	switch {
	case err != nil:
		return err
	case got.status == 200 && got.word == "renewed":
		var renewed struct {
			ValidForMs int64 `json:"valid_for_ms"`
		}
		if err := got.json(&renewed); err != nil {
			return err
		}
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.validUntil = max(c.validUntil, sent+time.Duration(renewed.ValidForMs)*time.Millisecond)
		return nil
	case got.status == 503 || !got.isOfOnce():
		return &unreachable{message: "the server could not renew the claim yet"}
	case got.status == 409 || got.status == 200: // 200: superseded, by another attempt's result.
		return c.errLost()
	}
	return refused(got, fmt.Sprintf("the claim of %q is not renewed", c.Key))
}

func (c *Claim) startRenewing(first time.Duration) {
	var renewing context.Context
	renewing, c.stop = context.WithCancel(context.Background())
	go c.keepRenewed(renewing, first, c.maxDuration, c.inDoubt != nil)
}

// A renewal in doubt that finds no claim does not lose it: the transaction may have been committed.
func (c *Claim) keepRenewed(ctx context.Context, following, maxDuration time.Duration, isInDoubt bool) {
	until := uptime() + maxDuration
	for sleep(ctx, following) == nil {
		if maxDuration > 0 && uptime() >= until {
			c.client.warn(fmt.Sprintf("the work of %q runs for longer than MaxDuration: its claim is not renewed, and lapses", c.Key))
			return
		}
		err := c.renew(ctx, "", min(c.client.timeout, c.lease/3))
		following = c.lease / 3
		var none *unreachable
		switch {
		case ctx.Err() != nil || isInDoubt && errors.Is(err, ErrClaimLost):
			return
		case errors.Is(err, ErrClaimLost):
			c.lose(err)
			return
		case errors.As(err, &none):
			following = min(c.lease/20, time.Second)
		case err != nil:
			c.client.warn(err.Error())
		}
	}
}

// Check looks before you leap: nil if the claim is certainly still ours, else ErrClaimLost.
func (c *Claim) Check(ctx context.Context) error {
	if c.lost.Err() != nil {
		return context.Cause(c.lost)
	}
	giveUp := uptime() + c.client.timeout
	var pause pauses
	for c.ValidFor() == 0 {
		err := c.renew(ctx, "", giveUp-uptime())
		var none *unreachable
		if errors.As(err, &none) {
			if none.fatal || uptime() >= giveUp {
				return fail(ErrUnavailable, "whether the claim of %q still stands is not known: %v", c.Key, err)
			}
		} else if err != nil {
			return err
		}
		if c.ValidFor() > 0 {
			return nil
		}
		if uptime() >= giveUp {
			return fail(ErrUnavailable, "the claim of %q is over each time before it can be used: raise the lease", c.Key)
		}
		if err := pause.wait(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// Note tells operators, who see it with the record, how far the work is.
func (c *Claim) Note(ctx context.Context, text string) error {
	err := c.renew(ctx, text, c.client.timeout)
	var none *unreachable
	if errors.As(err, &none) {
		return nil
	}
	return err
}

// persist sends until it is answered, for one lease from now: then the claim is over, whenever it was renewed. A context
// that is cancelled does not end it: the work has been done.
func (c *Claim) persist(ctx context.Context, method, word string, body []byte, content string) (*answer, error) {
	ctx = context.WithoutCancel(ctx)
	giveUp := uptime() + c.lease
	var pause pauses
	for {
		got, err := c.client.send(ctx, method, c.path(word), body, content, c.client.timeout)
		if err == nil {
			problem, _ := got.problem()
			switch {
			case !got.isOfOnce():
				problem = "of another server"
			case got.status != 401 && got.status != 500 && (got.status < 502 || got.status > 504):
				return got, nil
			}
			err = fmt.Errorf("%d %s", got.status, problem)
		}
		if uptime() >= giveUp {
			return nil, fail(ErrUnrecorded, "the end of %q could not be recorded: %v", c.Key, err)
		}
		if err := pause.wait(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

// The transaction that was in doubt has been committed.
var errCommitted = errors.New("once: the transaction was committed")

func (c *Claim) begin() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.hasEnded {
		return fail(ErrRefused, "the claim of %q has ended already", c.Key)
	}
	c.hasEnded = true
	return nil
}

func (c *Claim) ended() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.hasEnded
}

// finish returns nil when it is recorded, and the result of an attempt that took over.
func (c *Claim) finish(ctx context.Context, word string, body []byte, content string) (*Result, error) {
	got, err := c.persist(ctx, "POST", word, body, content)
	switch {
	case err != nil:
		return nil, err
	case got.status == 200 && got.word == "recorded":
		return nil, nil
	case got.status == 200 && got.word == "superseded":
		return &Result{got.body, got.content}, nil
	case got.status == 413:
		_, detail := got.problem()
		return nil, fail(ErrTooLarge, "%s", detail)
	case got.status == 409:
		if word, _ := got.problem(); word == "already-finished" && c.inDoubt != nil {
			return nil, errCommitted
		}
		return nil, c.errLost()
	}
	return nil, refused(got, fmt.Sprintf("the work of %q ran, and its end is not recorded", c.Key))
}

// Complete stores the result. It returns nil when that is recorded, and the result that counts if another attempt took
// over. One that is too large is replaced by a note of that: a replay is ErrResultNotKept, never a second run.
func (c *Claim) Complete(ctx context.Context, result Result) (*Result, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.stop()
	if len(result.Body) <= maxResultBytes {
		other, err := c.finish(ctx, "complete", result.Body, result.ContentType)
		if !errors.Is(err, ErrTooLarge) {
			return other, err
		}
	}
	why := fmt.Sprintf("a result of %d bytes was too large to keep", len(result.Body))
	c.client.warn(fmt.Sprintf("%q ran, and %s", c.Key, why))
	return c.finish(ctx, "complete", []byte(why), NotKept)
}

func (c *Claim) end(ctx context.Context, word string, members map[string]string) error {
	if err := c.begin(); err != nil {
		return err
	}
	defer c.stop()
	body, err := json.Marshal(members)
	if err != nil {
		return err
	}
	_, err = c.finish(ctx, word, body, jsonType)
	return err
}

// Fail stores a failure, which is replayed to later callers as ErrStoredFailure.
func (c *Claim) Fail(ctx context.Context, code, message string) error {
	if code == "" {
		code = "failed"
	}
	return c.end(ctx, "fail", map[string]string{"code": cut(code, 255), "message": cut(message, 4096)})
}

// Release says that nothing was done: the next caller may run it at once.
func (c *Claim) Release(ctx context.Context, reason string) error {
	return c.end(ctx, "release", map[string]string{"reason": cut(reason, 1000)})
}

// Hold says that the outcome is not known: nothing is run until an operator has decided.
func (c *Claim) Hold(ctx context.Context, reason string) error {
	if reason == "" {
		reason = "hold"
	}
	return c.end(ctx, "hold", map[string]string{"reason": cut(reason, 1000)})
}

// Lapse ends the renewals and sends nothing: what the work has done is not known.
func (c *Claim) Lapse() {
	if c.begin() == nil {
		c.stop()
	}
}

// Step returns the result of fn, which is kept in the record: an attempt that takes over gets it, and does not call fn.
func Step[T any](ctx context.Context, claim *Claim, name string, fn func(context.Context) (T, error)) (T, error) {
	var value T
	if name == "" || len(name) > 255 || !utf8.ValidString(name) {
		return value, errors.New("once: a step's name has 1 to 255 bytes of UTF-8")
	}
	claim.mutex.Lock()
	known, isKnown := claim.steps[name]
	claim.mutex.Unlock()
	if isKnown {
		err := json.Unmarshal(known, &value)
		return value, err
	}
	if err := claim.Check(ctx); err != nil {
		return value, err
	}
	value, err := fn(ctx)
	if err != nil {
		return value, err
	}
	body, err := json.Marshal(value)
	if err != nil {
		return value, fmt.Errorf("once: the step %q ran, and is not recorded: its result is not JSON: %w", name, err)
	}
	path := "steps/" + strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
	got, err := claim.persist(ctx, "PUT", path, body, jsonType)
	if err != nil {
		return value, err
	}
	if got.status == 200 && got.word == "recorded" {
		claim.mutex.Lock()
		claim.steps[name] = body
		claim.mutex.Unlock()
		return value, nil
	}
	word, detail := got.problem()
	switch {
	case got.status == 413:
		return value, fail(ErrTooLarge, "the step %q has no room in the record: %s", name, detail)
	case word == "already-finished":
		return value, fail(ErrStepReused, "the step %q was finished with another result: a name is used once", name)
	case got.status == 409 || got.status == 200:
		return value, claim.errLost()
	}
	return value, refused(got, fmt.Sprintf("the step %q ran, and is not recorded", name))
}

// refused says in what also whether anything ran.
func refused(got *answer, what string) error {
	word, detail := got.problem()
	err := fail(ErrRefused, "%s: the server refused it: %d %s: %s%s", what, got.status, word, detail, got.advice)
	err.Status = got.status
	return err
}

func cut(text string, bytes int) string {
	if len(text) > bytes {
		text = text[:bytes]
	}
	return strings.ToValidUTF8(text, "")
}
