package once

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

const maxPayloadBytes = 32 << 10 // A larger one is compared by its SHA-256.

// Fate is what becomes of the claim of work that failed.
type Fate string

const (
	Release Fate = "release" // A retry may run it. The default.
	Store   Fate = "fail"    // The failure is replayed, as ErrStoredFailure.
	Hold    Fate = "hold"    // An operator decides.
)

// Option says how calls of one operation are claimed, and what becomes of them.
type Option func(*options)

type options struct {
	scope        string
	wait         time.Duration
	members      map[string]any
	fate         func(error) Fate
	failsIfLate  bool
	payload      func(any) any
	comparesNone bool
	maxDuration  time.Duration
	retention    time.Duration
}

func duration(name string, value time.Duration) Option {
	if value < 0 {
		panic("once: a negative " + name)
	}
	return func(o *options) { o.members[name+"_ms"] = value.Milliseconds() }
}

// Lease is how long the claim is respected without a sign of life. Default: 30 s.
func Lease(value time.Duration) Option { return duration("lease", value) }

// Retention is how long a result is replayed. Default: 24 hours.
func Retention(value time.Duration) Option {
	member := duration("retention", value)
	return func(o *options) {
		o.retention = value
		member(o)
	}
}

// FailureRetention is how long a failure is replayed. Default: as Retention.
func FailureRetention(value time.Duration) Option { return duration("failure_retention", value) }

// Expected is when the operation counts as overdue.
func Expected(value time.Duration) Option { return duration("expected", value) }

// MaxDuration is how long the claim of work is renewed that does not end. Then it lapses. Default: as long as the work runs.
func MaxDuration(value time.Duration) Option {
	if value < 0 {
		panic("once: a negative max_duration")
	}
	return func(o *options) { o.maxDuration = value }
}

// Wait is how long to wait for another caller's result. Default: 10 s.
func Wait(value time.Duration) Option { return func(o *options) { o.wait = value } }

// HoldOnLapse says that a claim whose lease ended is not run again: an operator decides.
func HoldOnLapse() Option { return func(o *options) { o.members["on_lapse"] = "hold" } }

// RetryFailures tries a stored failure again.
func RetryFailures() Option { return func(o *options) { o.members["retry_failures"] = true } }

// Derive names keys for services downstream: see Claim.DerivedKeys.
func Derive(names ...string) Option { return func(o *options) { o.members["derive"] = names } }

// OnError chooses by the error of the work.
func OnError(fate func(error) Fate) Option { return func(o *options) { o.fate = fate } }

// FailIfUnrecorded returns ErrUnrecorded when the end could not be recorded for a lease. The default returns the result.
func FailIfUnrecorded() Option { return func(o *options) { o.failsIfLate = true } }

// Payload says what of Func's argument is compared: a call with the same key and another payload is ErrKeyReused.
// Default: all of it, as JSON. What JSON would make equal is refused, such as a struct with unexported fields.
func Payload[A any](of func(A) any) Option {
	return func(o *options) {
		o.payload = func(argument any) any {
			typed, isOne := argument.(A)
			if !isOne {
				panic(fmt.Sprintf("once: Payload is for another type than %T", argument))
			}
			return of(typed)
		}
	}
}

// CompareNothing leaves Func's argument out.
func CompareNothing() Option { return func(o *options) { o.comparesNone = true } }

func collect(scope string, given []Option) options {
	if scope == "" {
		panic("once: the scope is empty: it is the operation's name, such as charge")
	}
	o := options{scope: scope, wait: 10 * time.Second, retention: 24 * time.Hour, members: map[string]any{}, fate: func(error) Fate { return Release }}
	for _, option := range given {
		option(&o)
	}
	return o
}

type claimsKey struct{}

// ClaimFrom is the claim of the work that runs in this context, or nil.
func ClaimFrom(ctx context.Context) *Claim {
	claims, _ := ctx.Value(claimsKey{}).([]*Claim)
	for i := len(claims) - 1; i >= 0; i-- {
		if !claims[i].ended() {
			return claims[i]
		}
	}
	return nil
}

// Func returns a function that runs fn once for each key; later calls get its result. scope is the operation's name. It
// panics for a mistake in its arguments: an empty scope, one that was given twice, no key.
func Func[A, R any](c *Client, scope string, key func(A) string, fn func(context.Context, A) (R, error), given ...Option) func(context.Context, A) (R, error) {
	o := collect(scope, given)
	if key == nil || fn == nil {
		panic("once: Func needs a key and a function")
	}
	c.mutex.Lock()
	if c.scopes[scope] {
		c.mutex.Unlock()
		panic(fmt.Sprintf("once: two functions have the scope %q: they would give their results to one another's callers; give each a scope of its own, or use Call for work that is made anew for each call", scope))
	}
	c.scopes[scope] = true
	c.mutex.Unlock()
	return func(ctx context.Context, argument A) (R, error) {
		isOff, err := c.Disabled(scope)
		if err != nil {
			var none R
			return none, err
		}
		if isOff {
			return fn(ctx, argument)
		}
		var payload any = argument
		if o.payload != nil {
			payload = o.payload(argument)
		}
		return call(ctx, c, o, key(argument), payload, !o.comparesNone, func(ctx context.Context, _ *Claim) (R, error) { return fn(ctx, argument) })
	}
}

// Call runs fn once for this key, and returns its result, or the stored one. payload is compared, unless it is nil. The
// context of fn is cancelled when the claim is lost; its cause is ErrClaimLost then.
func Call[R any](ctx context.Context, c *Client, scope, key string, payload any, fn func(context.Context, *Claim) (R, error), given ...Option) (R, error) {
	o := collect(scope, given)
	var none R
	if isOff, err := c.Disabled(scope); err != nil {
		return none, err
	} else if isOff {
		return none, fail(ErrUnavailable, "ONCE_DISABLED is set: there is no claim for this work; use Func")
	}
	return call(ctx, c, o, key, payload, payload != nil, fn)
}

func call[R any](ctx context.Context, c *Client, o options, key string, payload any, compares bool, fn func(context.Context, *Claim) (R, error)) (R, error) {
	var none R
	members := o.members
	if compares {
		member, err := compared(payload)
		if err != nil {
			return none, err
		}
		members = with(members, member)
	}
	claim, stored, err := c.begin(ctx, o, key, members)
	if err != nil {
		return none, err
	}
	if stored != nil {
		return decode[R](key, *stored)
	}
	claim.isOfWork = true
	defer claim.Lapse() // If fn panics: it may have acted.
	working, cancel := context.WithCancelCause(WithClaim(ctx, claim))
	defer cancel(nil)
	defer context.AfterFunc(claim.lost, func() { cancel(context.Cause(claim.lost)) })()
	result, err := fn(working, claim)
	if claim.ended() {
		return result, err
	}
	if err == nil && claim.inDoubt != nil { // Its rows may have been rolled back, so no result is recorded.
		err = fail(ErrUnrecorded, "the work of %q returned, but its transaction may not have been committed", key)
	}
	if err != nil {
		if claim.failed(ctx, working, o, err) {
			return decode[R](key, Result{claim.inDoubt, jsonType})
		}
		return none, err
	}
	body, why := json.Marshal(result)
	value := Result{body, jsonType}
	if why != nil {
		value = Result{[]byte(cut("its result is not JSON: "+why.Error(), 1000)), NotKept}
		c.warn(fmt.Sprintf("%q ran, and %s", key, value.Body))
	}
	other, err := claim.Complete(ctx, value)
	switch {
	case errors.Is(err, ErrUnrecorded) && !o.failsIfLate:
		c.warn(err.Error() + "; its work has run, and may run again")
	case err != nil:
		return none, err
	case other != nil:
		return decode[R](key, *other)
	}
	return result, nil
}

// failed reports whether the transaction of Commit was committed after all.
func (c *Claim) failed(ctx, working context.Context, o options, err error) bool {
	// It was cancelled, or its claim is lost: it may have acted, so the claim lapses.
	// After a Commit that may have been carried out, or did not see the claim, the server knows how it stands.
	isLost := errors.Is(err, ErrClaimLost) && c.inDoubt == nil && !c.isUnseen
	if working.Err() != nil || isLost {
		c.Lapse()
		return false
	}
	var end error
	switch o.fate(err) {
	case Release:
		end = c.Release(ctx, fmt.Sprintf("%T: %v", err, err))
	case Store:
		end = c.Fail(ctx, fmt.Sprintf("%T", err), err.Error())
	default: // A function with a bug must not let the work run again.
		end = c.Hold(ctx, fmt.Sprintf("%T: %v", err, err))
	}
	if end == errCommitted {
		return true
	}
	if end != nil { // The work's own error is what the caller must see.
		c.client.warn(fmt.Sprintf("the end of %q was not recorded: %v", c.Key, end))
	}
	return false
}

// WithClaim returns a context in which ClaimFrom finds the claim.
func WithClaim(ctx context.Context, claim *Claim) context.Context {
	claims, _ := ctx.Value(claimsKey{}).([]*Claim)
	return context.WithValue(ctx, claimsKey{}, append(claims[:len(claims):len(claims)], claim))
}

func with(members, more map[string]any) map[string]any {
	all := make(map[string]any, len(members)+len(more))
	for _, some := range []map[string]any{members, more} {
		for name, value := range some {
			all[name] = value
		}
	}
	return all
}

func decode[R any](key string, stored Result) (R, error) {
	var value R
	if stored.ContentType == NotKept {
		return value, fail(ErrResultNotKept, "%q ran, and %s; it is not run again", key, stored.Body)
	}
	if stored.ContentType != jsonType {
		return value, fail(ErrResultUnreadable, "%q ran, and its result is of the type %q, not JSON", key, stored.ContentType)
	}
	if err := json.Unmarshal(stored.Body, &value); err != nil {
		return value, fail(ErrResultUnreadable, "%q ran, and its result is not a %T: %v", key, value, err)
	}
	return value, nil
}

func compared(payload any) (map[string]any, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(payload); err != nil {
		return nil, fmt.Errorf("once: the argument cannot be compared: %w; choose what counts with Payload", err)
	}
	err := toldApart(reflect.ValueOf(payload), "it")
	if err == nil && !utf8.Valid(text.Bytes()) { // Of a json.RawMessage.
		err = errors.New("it is no UTF-8")
	}
	if err != nil {
		return nil, fmt.Errorf("once: the argument cannot be compared, and nothing was run: %w; choose what counts with Payload", err)
	}
	if text.Len() <= maxPayloadBytes {
		return map[string]any{"payload_json": text.String()}, nil
	}
	digest := sha256.Sum256(text.Bytes())
	return map[string]any{"fingerprint": "sha256:" + hex.EncodeToString(digest[:])}, nil
}

var marshalers = []reflect.Type{reflect.TypeOf((*json.Marshaler)(nil)).Elem(), reflect.TypeOf((*encoding.TextMarshaler)(nil)).Elem()}

func isMarshaler(value reflect.Value) bool {
	kind := value.Type()
	for _, marshaler := range marshalers {
		if kind.Implements(marshaler) || (value.CanAddr() && reflect.PointerTo(kind).Implements(marshaler)) {
			return true
		}
	}
	return false
}

// whole refuses a struct that has the MarshalJSON of a field that it embeds, such as a time.Time: its JSON is that field's.
func whole(value reflect.Value, path string) error {
	if value.Kind() != reflect.Struct || value.NumField() == 1 || !value.CanInterface() {
		return nil
	}
	text := func(value reflect.Value) string {
		if value.CanAddr() {
			value = value.Addr()
		}
		data, err := json.Marshal(value.Interface())
		return fmt.Sprint(string(data), err)
	}
	for i := 0; i < value.NumField(); i++ {
		field := value.Type().Field(i)
		if field.Anonymous && field.IsExported() && isMarshaler(value.Field(i)) && text(value) == text(value.Field(i)) {
			return fmt.Errorf("%s is a %v, whose JSON is that of its field %s alone", path, value.Type(), field.Name)
		}
	}
	return nil
}

// toldApart refuses what encoding/json would make one of several: it leaves unexported fields out, and replaces bytes that
// are no UTF-8. The value has been encoded, so that it does not contain itself.
func toldApart(value reflect.Value, path string) error {
	if !value.IsValid() {
		return nil
	}
	if isMarshaler(value) {
		return whole(reflect.Indirect(value), path)
	}
	kind := value.Type()
	switch value.Kind() {
	case reflect.String:
		if !utf8.ValidString(value.String()) {
			return fmt.Errorf("%s is no UTF-8", path)
		}
	case reflect.Pointer, reflect.Interface:
		return toldApart(value.Elem(), path)
	case reflect.Slice, reflect.Array:
		if kind.Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := 0; i < value.Len(); i++ {
			if err := toldApart(value.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for each := value.MapRange(); each.Next(); {
			if err := errors.Join(toldApart(each.Key(), "a key of "+path), toldApart(each.Value(), fmt.Sprintf("%s[%v]", path, each.Key()))); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := 0; i < value.NumField(); i++ {
			field := kind.Field(i)
			isLeftOut := field.Tag.Get("json") == "-" || field.Name == "_"
			isInside := field.Anonymous && (field.Type.Kind() == reflect.Struct || field.IsExported())
			switch {
			case isLeftOut:
			case !field.IsExported() && !isInside:
				return fmt.Errorf("%s is a %v, whose field %s is not exported", path, kind, field.Name)
			default:
				if err := toldApart(value.Field(i), path+"."+field.Name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var switches = map[string]bool{"1": true, "true": true, "yes": true, "on": true, "0": false, "false": false, "no": false, "off": false, "": false}

// Disabled is whether ONCE_DISABLED switches protection off, as docs/testing.md has it. Each such run is reported.
func (c *Client) Disabled(scope string) (bool, error) {
	word := os.Getenv("ONCE_DISABLED")
	isOff, isKnown := switches[strings.ToLower(word)]
	if !isKnown {
		return false, fmt.Errorf("once: ONCE_DISABLED is %q: neither 1 nor 0", word)
	}
	if isOff {
		c.warn(fmt.Sprintf("ONCE_DISABLED is set: %q runs unprotected, so that it may run twice", scope))
	}
	return isOff, nil
}

var missing = map[string]bool{"": true, "undefined": true, "null": true, "nil": true, "none": true, "nan": true, "true": true, "false": true,
	"<nil>": true, "[object object]": true, "00000000-0000-0000-0000-000000000000": true}

// Begin is for adapters: a claim that is certainly ours now, or the stored result. payload is compared, unless it is nil.
func (c *Client) Begin(ctx context.Context, scope, key string, payload any, given ...Option) (*Claim, *Result, error) {
	o := collect(scope, given)
	members := o.members
	if payload != nil {
		member, err := compared(payload)
		if err != nil {
			return nil, nil, err
		}
		members = with(members, member)
	}
	return c.begin(ctx, o, key, members)
}

func (c *Client) begin(ctx context.Context, o options, key string, members map[string]any) (*Claim, *Result, error) {
	scope := o.scope
	if missing[strings.ToLower(strings.TrimSpace(key))] {
		return nil, nil, fail(ErrKeyMissing, "the key is %q, which is none; nothing was run", key)
	}
	if !utf8.ValidString(scope) || !utf8.ValidString(key) { // encoding/json would make one key of several.
		return nil, nil, fail(ErrKeyMissing, "the scope %q or the key %q is no UTF-8; nothing was run", scope, key)
	}
	claims, _ := ctx.Value(claimsKey{}).([]*Claim)
	for _, claim := range claims {
		if claim.Key == key && claim.Scope == scope && !claim.ended() {
			return nil, nil, fail(ErrInProgress, "%q is asked for by its own work, which would wait for itself", key)
		}
	}
	waitedUntil := uptime() + o.wait
	for {
		claim, stored, err := c.beginOnce(ctx, scope, key, max(waitedUntil-uptime(), 0), members)
		if claim == nil {
			return nil, stored, err
		}
		// After a long wait it may be over. Nothing has run: if it is lost, another one is as good.
		err = claim.Check(ctx)
		if err == nil {
			claim.retention, claim.maxDuration = o.retention, o.maxDuration
			claim.startRenewing(claim.lease / 3)
			return claim, nil, nil
		}
		if !errors.Is(err, ErrClaimLost) {
			return nil, nil, err
		}
	}
}

func (c *Client) beginOnce(ctx context.Context, scope, key string, wait time.Duration, members map[string]any) (*Claim, *Result, error) {
	id, err := randomID()
	if err != nil {
		return nil, nil, err
	}
	// The same bytes each time: that is how the server knows a call again whose answer was lost.
	body, err := json.Marshal(with(members, map[string]any{
		"scope": scope, "key": key, "holder": cut(c.holder+" "+scope, 200), "wait_ms": wait.Milliseconds(), "request_id": id}))
	if err != nil {
		return nil, nil, err
	}
	giveUp := uptime() + wait + c.timeout
	var pause pauses
	for {
		sent := uptime()
		got, err := c.send(ctx, "POST", "/v1/claims", body, jsonType, giveUp-sent)
		if err == nil && got.status == 201 {
			claim, err := c.claimed(got, scope, key, sent)
			return claim, nil, err
		}
		if err != nil {
			var none *unreachable
			if !errors.As(err, &none) {
				return nil, nil, err
			}
			if none.fatal || uptime() >= giveUp {
				return nil, nil, fail(ErrUnavailable, "nothing was run: %v", err)
			}
			if err := pause.wait(ctx, giveUp-uptime()); err != nil {
				return nil, nil, err
			}
			continue
		}
		if got.status != 503 && (got.status < 500 || got.isOfOnce()) {
			stored, err := otherBegin(got, key)
			return nil, stored, err
		}
		if uptime()+got.retryAfter() >= giveUp {
			word, detail := got.problem()
			return nil, nil, fail(ErrUnavailable, "nothing was run: %s: %s", word, detail)
		}
		if err := sleep(ctx, got.retryAfter()); err != nil {
			return nil, nil, err
		}
	}
}

func (c *Client) claimed(got *answer, scope, key string, sent time.Duration) (*Claim, error) {
	var members struct {
		Claim       string
		StoredKey   string `json:"stored_key_hex"`
		Attempt     int64
		Token       int64
		LeaseMs     int64             `json:"lease_ms"`
		ValidForMs  int64             `json:"valid_for_ms"`
		Steps       map[string][]byte // Base64, as encoding/json has bytes.
		DerivedKeys map[string]string `json:"derived_keys"`
	}
	if err := json.Unmarshal(got.body, &members); err != nil || members.Claim == "" || members.LeaseMs <= 0 {
		return nil, fail(ErrUnavailable, "nothing was run: the server's claim is malformed: is it `once serve`?")
	}
	claim := &Claim{Scope: scope, Key: key, Attempt: members.Attempt, Token: members.Token, DerivedKeys: members.DerivedKeys,
		client: c, id: members.Claim, lease: time.Duration(members.LeaseMs) * time.Millisecond, stop: func() {},
		validUntil: sent + time.Duration(members.ValidForMs)*time.Millisecond, steps: map[string]json.RawMessage{}}
	for name, result := range members.Steps {
		claim.steps[name] = result
	}
	if strings.HasPrefix(members.Claim, "01") && len(members.Claim) > 34 { // Its version, and then its owner.
		claim.storedKey, claim.owner = members.StoredKey, members.Claim[2:34]
	}
	claim.lost, claim.lose = context.WithCancelCause(context.Background())
	return claim, nil
}

func otherBegin(got *answer, key string) (*Result, error) {
	if got.status == 200 && got.word == "replayed" {
		return &Result{got.body, got.content}, nil
	}
	if got.status == 200 && got.word == "failed" {
		var failure struct {
			Code, Message, Result string
			ContentType           string `json:"content_type"`
		}
		if err := got.json(&failure); err != nil {
			return nil, fail(ErrUnavailable, "%v", err)
		}
		result, err := base64.StdEncoding.DecodeString(failure.Result)
		if err != nil {
			return nil, fail(ErrUnavailable, "the stored failure is malformed: %v", err)
		}
		told := fail(ErrStoredFailure, "%s: %s", failure.Code, failure.Message)
		told.Failure = &StoredFailure{failure.Code, failure.Message, result, failure.ContentType}
		return nil, told
	}
	switch word, _ := got.problem(); word {
	case "in-progress":
		var members struct {
			RetryAfterMs float64 `json:"retry_after_ms"`
		}
		if err := got.json(&members); err != nil {
			return nil, fail(ErrUnavailable, "%v", err)
		}
		told := fail(ErrInProgress, "another call with the key %q is running", key)
		told.RetryAfter = time.Duration(math.Max(members.RetryAfterMs, 0)) * time.Millisecond
		return nil, told
	case "key-reused":
		return nil, fail(ErrKeyReused, "the key %q was used with another payload; nothing was run", key)
	case "outcome-unknown":
		return nil, fail(ErrOutcomeUnknown, "the outcome of %q is unknown; nothing is run until an operator has decided", key)
	case "answer-not-kept":
		return nil, fail(ErrResultNotKept, "%q ran, and its result was too large to keep; it is not run again", key)
	}
	return nil, refused(got, fmt.Sprintf("nothing was run for %q", key))
}
