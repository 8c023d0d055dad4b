// Package oncehttp makes requests with an Idempotency-Key run once, in a service on net/http.
package oncehttp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"once.invalid/once"
)

const answerType = "application/vnd.once.http-response+json" // How a response is stored.

// Options are for all requests of a service.
type Options struct {
	// Principal says whose key it is; ok is false for a client that is not known, and its request is refused. There is no
	// default: clients that share a principal get one another's answers. See Header and Shared.
	Principal func(*http.Request) (principal string, ok bool)
	// Service stands in front of the scope, where services share a store.
	Service string
	// Methods are protected. Default: POST and PATCH.
	Methods []string
	// OptionalKey lets requests without a key pass through, unprotected.
	OptionalKey bool
	// MaxRequestBytes and MaxAnswerBytes are 1 MiB by default. A larger request is refused. A larger answer is given
	// once, and a retry gets 410.
	MaxRequestBytes, MaxAnswerBytes int64
	// TakeOver lets a retry run again after 502 to 504, a panic, or the death of the process. Default: an operator decides.
	TakeOver bool
	// Claim are more options of each claim, such as once.Lease, once.Wait (default: a retry does not wait), and
	// once.MaxDuration (default: the claim of a handler that does not return is renewed for 10 minutes).
	Claim []once.Option
}

// Shared makes all clients one.
func Shared(*http.Request) (string, bool) { return "", true }

var (
	unstableHeaders = regexp.MustCompile(`(?i)signature|^(dpop|date|x-amz-date|x-amz-security-token|x-request-id|traceparent)$`)
	unstableValues  = regexp.MustCompile(`(?i)^(aws4-hmac-sha256|hmac|signature|digest|oauth|dpop|hawk|negotiate|sharedkey)\b`)
	jwt             = regexp.MustCompile(`eyJ[\w-]*\.eyJ[\w-]*\.[\w-]*`)
	quoted          = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])*)"\s*(?:;[^,"]*)?`)
	printable       = regexp.MustCompile(`^[\x20-\x7e]{1,255}$`)
	bugs            = map[string]bool{"undefined": true, "null": true, "nil": true, "none": true, "nan": true, "true": true, "false": true,
		"[object object]": true, "00000000-0000-0000-0000-000000000000": true}
	released  = map[int]bool{401: true, 403: true, 407: true, 408: true, 409: true, 421: true, 425: true, 429: true} // Nothing was done.
	notStored = map[string]bool{"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
		"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Date": true, "Server": true,
		"Set-Cookie": true, "Www-Authenticate": true, "Content-Length": true}
)

// Header makes the value of this header the principal. It panics for one that changes with each request.
func Header(name string) func(*http.Request) (string, bool) {
	if name == "" || unstableHeaders.MatchString(name) {
		panic(fmt.Sprintf("oncehttp: the header %q changes with each request: a retry would be another client's", name))
	}
	return func(request *http.Request) (string, bool) {
		values := request.Header.Values(name)
		return strings.Join(values, ""), len(values) == 1 && values[0] != ""
	}
}

type problem struct {
	word          string
	status        int
	title, detail string
	retryAfter    time.Duration
}

type answer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// Middleware returns what wraps a handler. The handler's context has the claim: see once.ClaimFrom. It is not cancelled
// when the client hangs up, because the answer is stored all the same. It panics for options without a principal.
func Middleware(client *once.Client, options Options) func(http.Handler) http.Handler {
	if client == nil || options.Principal == nil {
		panic("oncehttp: Middleware needs a client and Options.Principal, such as Header(\"X-Api-Key\") or Shared")
	}
	if len(options.Methods) == 0 {
		options.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	methods := map[string]bool{}
	for _, method := range options.Methods {
		switch method {
		case http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete:
			methods[method] = true
		default:
			panic(fmt.Sprintf("oncehttp: the method %q is none of POST, PATCH, PUT and DELETE", method))
		}
	}
	if options.MaxRequestBytes == 0 {
		options.MaxRequestBytes = 1 << 20
	}
	if options.MaxAnswerBytes == 0 {
		options.MaxAnswerBytes = 1 << 20
	}
	// A handler that never returns does not keep its key for ever.
	claimed := []once.Option{once.Wait(0), once.MaxDuration(10 * time.Minute)}
	if !options.TakeOver {
		claimed = append(claimed, once.HoldOnLapse())
	}
	claimed = append(claimed, options.Claim...)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
			if !methods[request.Method] {
				if methods[strings.ToUpper(request.Method)] {
					refuse(writer, &problem{"method-unclear", 400, "The method is not in capitals", "Nothing was carried out.", 0})
					return
				}
				next.ServeHTTP(writer, request)
				return
			}
			key, wrong := keyOf(request, options.OptionalKey)
			if wrong == nil && key == "" {
				next.ServeHTTP(writer, request)
				return
			}
			var scope string
			if wrong == nil {
				scope, wrong = scopeOf(request, options)
			}
			var body []byte
			if wrong == nil {
				body, wrong = bodyOf(writer, request, options.MaxRequestBytes)
			}
			if wrong != nil {
				refuse(writer, wrong)
				return
			}
			isOff, err := client.Disabled(scope)
			if err != nil {
				refuse(writer, of(err))
				return
			}
			if isOff {
				next.ServeHTTP(writer, request)
				return
			}
			claim, stored, err := begin(client, request, scope, key, body, claimed)
			if err != nil {
				refuse(writer, of(err))
				return
			}
			if stored != nil {
				replay(writer, *stored)
				return
			}
			serve(client, writer, request, next, claim, options)
		})
	}
}

func serve(client *once.Client, writer http.ResponseWriter, request *http.Request, next http.Handler, claim *once.Claim, options Options) {
	end := context.WithoutCancel(request.Context())
	working, cancel := context.WithCancelCause(once.WithClaim(end, claim))
	defer cancel(nil)
	watched := make(chan struct{})
	defer close(watched)
	go func() {
		select {
		case <-claim.Lost():
			cancel(once.ErrClaimLost)
		case <-watched:
		}
	}()
	kept := &recorder{header: http.Header{}}
	func() {
		defer func() {
			if caught := recover(); caught != nil {
				if options.TakeOver {
					claim.Lapse()
				} else {
					settled(client, claim.Hold(end, fmt.Sprintf("the handler panicked: %v", caught)))
				}
				panic(caught)
			}
		}()
		next.ServeHTTP(kept, request.WithContext(working))
	}()
	if kept.status == 0 {
		kept.status = http.StatusOK
	}
	given := answer{kept.status, kept.header, kept.body.Bytes()}
	switch {
	case released[given.Status]:
		settled(client, claim.Release(end, fmt.Sprintf("the answer was %d", given.Status)))
	case (given.Status >= 200 && given.Status < 500) || given.Status == 500 || given.Status == 501 || given.Status == 505:
		other, err := claim.Complete(end, stored(given, options.MaxAnswerBytes))
		if other != nil {
			replay(writer, *other)
			return
		}
		if errors.Is(err, once.ErrUnrecorded) {
			client.Warn(err.Error() + "; its answer is given, and it may run again")
		} else if err != nil {
			client.Warn("the answer of a request was not recorded: " + err.Error())
			refuse(writer, ofFinish(err))
			return
		}
	case options.TakeOver:
		claim.Lapse()
	default:
		settled(client, claim.Hold(end, fmt.Sprintf("the answer was %d", given.Status)))
	}
	send(writer, given)
}

// settled reports an end that was not recorded: the claim lapses then.
func settled(client *once.Client, err error) {
	if err != nil {
		client.Warn("the end of a request was not recorded: " + err.Error())
	}
}

// recorder keeps what the handler writes, until it is recorded what became of the request.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
}
func (r *recorder) Write(part []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(part)
}

func keyOf(request *http.Request, isOptional bool) (string, *problem) {
	keys := map[string]bool{}
	for _, line := range request.Header.Values("Idempotency-Key") {
		rest := strings.TrimSpace(line)
		for {
			var key string
			if strings.HasPrefix(rest, `"`) {
				found := quoted.FindStringSubmatch(rest)
				if found == nil {
					return "", invalid("It is wrongly quoted")
				}
				key = regexp.MustCompile(`\\(.)`).ReplaceAllString(found[1], "$1")
				rest = strings.TrimSpace(rest[len(found[0]):])
				if rest != "" && rest[0] != ',' {
					return "", invalid("There is something after the quotes")
				}
				rest = strings.TrimPrefix(rest, ",")
			} else {
				key, rest, _ = strings.Cut(rest, ",")
				if key = strings.TrimSpace(key); strings.Contains(key, `"`) {
					return "", invalid("It is wrongly quoted")
				}
			}
			if !printable.MatchString(key) {
				return "", invalid("It has 1 to 255 printable ASCII characters")
			}
			if bugs[strings.ToLower(strings.TrimSpace(key))] {
				return "", invalid("It is what a program with a bug sends in place of a key")
			}
			keys[key] = true
			if rest = strings.TrimSpace(rest); rest == "" {
				break
			}
		}
	}
	switch {
	case len(keys) > 1:
		return "", &problem{"keys-differ", 400, "Two idempotency keys", "Send one. Nothing was carried out.", 0}
	case len(keys) == 0 && !isOptional:
		return "", &problem{"key-missing", 400, "Idempotency key is missing", "Send a new key for each operation, such as a UUID, and the same one with every retry. Nothing was carried out.", 0}
	}
	for key := range keys {
		return key, nil
	}
	return "", nil
}

func invalid(why string) *problem {
	return &problem{"key-invalid", 400, "Idempotency key is invalid", why + ". Nothing was carried out.", 0}
}

func scopeOf(request *http.Request, options Options) (string, *problem) {
	who, isKnown := options.Principal(request)
	if !isKnown || bugs[strings.ToLower(strings.TrimSpace(who))] { // All clients would be one, and get one another's answers.
		return "", &problem{"principal-missing", 400, "The client is not known", "A key belongs to a client. Nothing was carried out.", 0}
	}
	if jwt.MatchString(who) || unstableValues.MatchString(who) {
		return "", &problem{"principal-unstable", 400, "The credentials change with each request", "A retry would be another client's. Nothing was carried out.", 0}
	}
	path := (&url.URL{Path: request.URL.Path}).EscapedPath() // Bytes that are no UTF-8 stay apart.
	if strings.Contains(strings.ToUpper(request.URL.RawPath), "%2F") {
		path = request.URL.EscapedPath()
	}
	if len(path) > 128 {
		path = strings.ToValidUTF8(path[:128], "") + digest([]byte(path))
	}
	return fmt.Sprintf("%s/%s %s %s", options.Service, request.Method, path, digest([]byte(who))), nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func bodyOf(writer http.ResponseWriter, request *http.Request, limit int64) ([]byte, *problem) {
	body, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &problem{"body-too-large", 413, "The body is too large", "Nothing was carried out.", 0}
	case err != nil:
		return nil, &problem{"request-incomplete", 400, "The body is not whole", "Nothing was carried out.", 0}
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// begin compares JSON by its meaning, and all else by its bytes: forms without their boundary.
func begin(client *once.Client, request *http.Request, scope, key string, body []byte, given []once.Option) (*once.Claim, *once.Result, error) {
	compared := map[string]any{"host": request.Host, "query": request.URL.RawQuery}
	if !utf8.ValidString(request.URL.RawQuery) {
		compared["query"], compared["query_bytes"] = "", []byte(request.URL.RawQuery)
	}
	kind, parameters, err := mime.ParseMediaType(request.Header.Get("Content-Type"))
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) && utf8.Valid(body) && json.Valid(body) {
		compared["json"] = json.RawMessage(body)
		claim, stored, err := client.Begin(request.Context(), scope, key, compared, given...)
		var known *once.Error
		if !errors.As(err, &known) || known.Kind != once.ErrRefused || known.Status != http.StatusBadRequest {
			return claim, stored, err
		}
		delete(compared, "json") // With two members of one name, or half a character: it has no single meaning.
	}
	if err == nil && kind == "multipart/form-data" && parameters["boundary"] != "" {
		body = bytes.ReplaceAll(body, []byte(parameters["boundary"]), []byte("boundary"))
	}
	compared["bytes"] = digest(body)
	return client.Begin(request.Context(), scope, key, compared, given...)
}

func stored(given answer, limit int64) once.Result {
	if int64(len(given.Body)) > limit {
		return once.Result{Body: []byte(fmt.Sprintf("a response of %d bytes is too large to keep", len(given.Body))), ContentType: once.NotKept}
	}
	kept := answer{given.Status, http.Header{}, given.Body}
	for name, values := range given.Header {
		if !notStored[http.CanonicalHeaderKey(name)] {
			kept.Header[name] = values
		}
	}
	body, err := json.Marshal(kept)
	if err != nil {
		panic(err) // Texts and bytes can be encoded.
	}
	return once.Result{Body: body, ContentType: answerType}
}

func replay(writer http.ResponseWriter, result once.Result) {
	var kept answer
	switch {
	case result.ContentType == once.NotKept:
		refuse(writer, &problem{"answer-not-kept", 410, "The answer was too large to keep", "The operation ran, and is not run again.", 0})
	case result.ContentType != answerType || json.Unmarshal(result.Body, &kept) != nil:
		refuse(writer, &problem{"record-unreadable", 500, "The stored answer cannot be read", "The operation is not run again.", 0})
	default:
		if kept.Header == nil {
			kept.Header = http.Header{}
		}
		kept.Header.Set("Idempotent-Replayed", "true")
		send(writer, kept)
	}
}

func send(writer http.ResponseWriter, given answer) {
	for name, values := range given.Header {
		writer.Header()[name] = values
	}
	writer.WriteHeader(given.Status)
	_, _ = writer.Write(given.Body) // A client that has gone can send its request again.
}

// of a begin: this request has done nothing.
func of(err error) *problem {
	var known *once.Error
	if !errors.As(err, &known) {
		return &problem{"internal", 500, "The request could not be protected", "Nothing was carried out.", 0}
	}
	switch known.Kind {
	case once.ErrInProgress:
		return &problem{"in-progress", 409, "The operation is in progress", "Send the same request again after Retry-After.", max(known.RetryAfter, time.Second)}
	case once.ErrKeyReused:
		return &problem{"key-reused", 422, "Idempotency key is already used", "The key was used with another request. This request was not carried out.", 0}
	case once.ErrOutcomeUnknown:
		return &problem{"outcome-unknown", 409, "The outcome is not known", "The operation began, and is not run again until an operator has decided.", 0}
	case once.ErrStoredFailure:
		return &problem{"operation-failed", 500, "The operation has failed", "It ran earlier and is recorded as failed. It does not run again with this idempotency key.", 0}
	case once.ErrResultNotKept:
		return &problem{"answer-not-kept", 410, "The answer was too large to keep", "The operation ran, and is not run again.", 0}
	case once.ErrUnavailable:
		return &problem{"store-unavailable", 503, "The store cannot be used", "Nothing was carried out.", time.Second}
	}
	return &problem{"internal", 500, "The request could not be protected", "Nothing was carried out.", 0}
}

// ofFinish: the request was carried out.
func ofFinish(err error) *problem {
	if errors.Is(err, once.ErrClaimLost) {
		return &problem{"claim-lost", 409, "Another request took over this operation",
			"This request lost its claim while it ran, and its answer was not kept. Send it again after the time in Retry-After to get the answer that counts.", time.Second}
	}
	return &problem{"not-recorded", 503, "The answer could not be recorded",
		"The operation was carried out, but its answer could not be recorded. Send the same request again after the time in Retry-After.", time.Second}
}

func refuse(writer http.ResponseWriter, why *problem) {
	body, err := json.Marshal(map[string]any{"type": "urn:once:problem:" + why.word, "title": why.title, "status": why.status, "detail": why.detail})
	if err != nil {
		panic(err) // Texts can be encoded.
	}
	writer.Header().Set("Content-Type", "application/problem+json")
	writer.Header().Set("Cache-Control", "no-store")
	if why.retryAfter > 0 {
		writer.Header().Set("Retry-After", strconv.Itoa(int((why.retryAfter+time.Second-1)/time.Second)))
	}
	writer.WriteHeader(why.status)
	_, _ = writer.Write(body) // A client that has gone can send its request again.
}
