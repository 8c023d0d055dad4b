// Package once makes operations run once, however often they are called. It is a client of `once serve`.
//
// The first call with a key runs the function, and its result is kept in a store. Every later call gets that result, from
// any process or host. If there is no server, or no key, the call returns an error, and nothing runs.
package once

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxBodyBytes = 64 << 20    // More than any record holds.
	maxIdle      = time.Minute // How long a connection is kept. What forgets a silent one in between does it later.
	startTimeout = time.Minute // Of `once serve --on-demand`, which may create a store.
	jsonType     = "application/json"
)

// Config says where the server is. Server and Store exclude each other; without both, ONCE_SERVER or ONCE_STORE says it.
type Config struct {
	Server string // "unix:PATH", "https://HOST:PORT", or "http://127.0.0.1:PORT" on this machine.
	// TokenFile has the token that an address needs. It is read again when the server does not know the token any more.
	// Default: ONCE_TOKEN_FILE.
	TokenFile string
	// CAFile has the authorities of the server's certificate, in PEM. The certificate and its name are always verified.
	// Default: ONCE_CA_FILE, else those of the system.
	CAFile string
	// CertFile and KeyFile are a client certificate in place of the token, in PEM. Those that are replaced count for the
	// next connection, as CAFile does.
	CertFile, KeyFile string

	Store   string        // A store, such as "sqlite:once.db", that the program `once` serves on demand.
	Program string        // Default: ONCE_PROGRAM, else that of package carried, `once` beside this executable, or on PATH.
	Timeout time.Duration // How long an unreachable server is tried again before a call fails. Default: 10 s.
	Holder  string        // Who has the claims, for people. Default: the process's number.
	// Schema is the PostgreSQL store's, for Commit. Default: once.
	Schema string
	// Warn is called with what a caller cannot see: a result that was not kept, an end that was not recorded. Default:
	// standard error.
	Warn func(message string)
}

// Client speaks to one `once serve`. One for a program; it may be used by many goroutines.
type Client struct {
	http      *http.Client
	base      string
	address   *address      // Nil on a Unix socket.
	store     func() string // Nil without one. A function, because fmt would print its password.
	directory string        // From which the store is seen, whatever the process changes to.
	program   string        // Empty: to be found.
	timeout   time.Duration
	holder    string
	warn      func(string)
	schema    string // Quoted.

	mutex  sync.Mutex
	socket string          // Of the server that was started on demand.
	scopes map[string]bool // Of Func.
}

// New makes a client. Nothing is connected before the first call.
func New(config Config) (*Client, error) {
	if config.Server != "" && config.Store != "" {
		return nil, errors.New("once: give Server or Store, not both: a server has a store of its own")
	}
	if config.Server == "" && config.Store == "" {
		var err error
		if config.Server, err = variable("ONCE_SERVER"); err == nil && config.Server == "" {
			config.Store, err = variable("ONCE_STORE")
		}
		if err != nil {
			return nil, err
		}
	}
	client := &Client{timeout: config.Timeout, holder: config.Holder, warn: config.Warn, scopes: map[string]bool{}}
	if client.timeout <= 0 {
		client.timeout = 10 * time.Second
	}
	if client.holder == "" {
		client.holder = fmt.Sprintf("pid %d", os.Getpid())
	}
	if config.Schema == "" {
		config.Schema = "once"
	}
	client.schema = `"` + strings.ReplaceAll(config.Schema, `"`, `""`) + `"`
	if client.warn == nil {
		client.warn = func(message string) { fmt.Fprintln(os.Stderr, "once: "+message) }
	}
	transport := &http.Transport{MaxIdleConns: 16, MaxIdleConnsPerHost: 16, IdleConnTimeout: maxIdle, DisableCompression: true}
	client.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	client.base = "http://once"
	switch {
	case config.Store != "":
		if err := config.needsNone(""); err != nil {
			return nil, err
		}
		client.store = func() string { return config.Store }
		client.directory = workingDirectory()
		client.program = config.Program
		if client.program == "" {
			client.program = os.Getenv("ONCE_PROGRAM")
		}
		if strings.ContainsRune(client.program, filepath.Separator) {
			path, err := filepath.Abs(client.program)
			if err != nil {
				return nil, err
			}
			client.program = path
		}
		transport.DialContext = client.dialOnDemand
	case strings.HasPrefix(config.Server, "unix:") && len(config.Server) > len("unix:"):
		if err := config.needsNone(": who may use a socket, its mode says"); err != nil {
			return nil, err
		}
		path, err := filepath.Abs(strings.TrimPrefix(config.Server, "unix:"))
		if err != nil {
			return nil, err
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialUnix(ctx, path, false)
		}
	case config.Server == "":
		return nil, errors.New("once: no server and no store is named: set Server to unix:/run/once/serve.sock, or Store to sqlite:once.db, or ONCE_SERVER or ONCE_STORE")
	default:
		at, err := newAddress(config)
		if err != nil {
			return nil, err
		}
		client.address, client.base = at, at.url
		transport.DialTLSContext = at.dialTLS
	}
	return client, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Warn is for adapters: it reports what their callers cannot see, as Config.Warn says.
func (c *Client) Warn(message string) { c.warn(message) }

// dialOnDemand asks the program for its socket, unless the known one answers.
func (c *Client) dialOnDemand(ctx context.Context, _, _ string) (net.Conn, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.socket != "" {
		if connection, err := dialUnix(ctx, c.socket, true); err == nil {
			return connection, nil
		}
	}
	socket, err := c.startServer()
	if err != nil {
		return nil, &unreachable{message: err.Error(), fatal: true}
	}
	c.socket = socket
	return dialUnix(ctx, socket, true)
}

func dialUnix(ctx context.Context, path string, isOnDemand bool) (net.Conn, error) {
	connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := requireTrusted(connection, path, isOnDemand); err != nil {
		connection.Close()
		return nil, err
	}
	return connection, nil
}

// workingDirectory is empty if it was removed. The program says so, if the store is seen from there.
func workingDirectory() string {
	path, err := os.Getwd()
	if err != nil {
		return ""
	}
	return path
}

var carried func() (string, error)

// RegisterProgram is for package carried: find returns the path of a program that it has, or nothing if it has none for
// this machine.
func RegisterProgram(find func() (string, error)) { carried = find }

func (c *Client) findProgram() (string, error) {
	if c.program != "" {
		return c.program, nil
	}
	if carried != nil {
		if path, err := carried(); path != "" || err != nil {
			return path, err
		}
	}
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), "once")
		if beside != own && isProgram(beside) {
			return beside, nil
		}
	}
	return "once", nil
}

// isProgram is false where every user could have put it.
func isProgram(path string) bool {
	directory, err := os.Stat(filepath.Dir(path))
	if err != nil || directory.Mode().Perm()&0o002 != 0 {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// startServer is not ended with a call: the server is for all of them.
func (c *Client) startServer() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	program, err := c.findProgram()
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, program, "serve", "--on-demand")
	// The URL may have a password, and every user of the host sees a command line.
	command.Env = append(os.Environ(), "ONCE_STORE="+c.store())
	if c.directory != workingDirectory() {
		command.Dir = c.directory
	}
	// Files, because the server that it leaves behind may keep pipes open.
	var outputs [2]*os.File
	for i := range outputs {
		file, err := os.CreateTemp("", "once-")
		if err != nil {
			return "", err
		}
		os.Remove(file.Name())
		defer file.Close()
		outputs[i] = file
	}
	command.Stdout, command.Stderr = outputs[0], outputs[1]
	failed := command.Run()
	read := func(file *os.File) string {
		text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<16))
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(text))
	}
	if failed != nil {
		return "", fmt.Errorf("`%s serve --on-demand` failed: %w: %s", program, failed, read(outputs[1]))
	}
	line, _, _ := strings.Cut(read(outputs[0]), "\n")
	var got struct {
		Socket string `json:"socket"`
	}
	if err := json.Unmarshal([]byte(line), &got); err != nil || !filepath.IsAbs(got.Socket) {
		return "", fmt.Errorf("`%s serve --on-demand` printed %.200q, not its socket", program, line)
	}
	return got.Socket, nil
}

type answer struct {
	status  int
	word    string // Of Once-Answer.
	content string // Content-Type.
	retry   string // Retry-After.
	body    []byte
	advice  string // What a person can do about it.
}

// problem returns its word and its detail; the word is empty if it is no problem of once.
func (a *answer) problem() (string, string) {
	var got struct{ Type, Title, Detail string }
	if json.Unmarshal(a.body, &got) != nil {
		return "", fmt.Sprintf("%.200q", a.body)
	}
	if got.Detail == "" {
		got.Detail = got.Title
	}
	word, isOurs := strings.CutPrefix(got.Type, "urn:once:problem:")
	if !isOurs {
		word = ""
	}
	return word, got.Detail
}

// isOfOnce is false where something in between has answered, such as a gateway whose server is away.
func (a *answer) isOfOnce() bool {
	word, _ := a.problem()
	return a.word != "" || word != ""
}

func (a *answer) retryAfter() time.Duration {
	seconds, err := strconv.ParseUint(a.retry, 10, 16)
	if err != nil {
		return time.Second
	}
	return time.Duration(seconds) * time.Second
}

func (a *answer) json(into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return &unreachable{message: "the server's answer is not JSON: is it `once serve`?", fatal: true}
	}
	return nil
}

// send returns an *unreachable if there is no answer, and ctx's own error if ctx is done.
func (c *Client) send(ctx context.Context, method, path string, body []byte, content string, timeout time.Duration) (*answer, error) {
	limited, cancel := context.WithTimeout(ctx, max(timeout, time.Millisecond))
	defer cancel()
	for {
		shown := ""
		if c.address != nil && c.address.token != nil {
			text, err := c.address.token.get()
			if err != nil {
				return nil, err
			}
			shown = text
		}
		got, err := c.exchange(limited, method, path, body, content, shown)
		if err == nil {
			// The file may have another token by now.
			if got.status != 401 || shown == "" || limited.Err() != nil || !c.address.token.isRenewed(shown) {
				return got, nil
			}
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var known *unreachable
		if errors.As(err, &known) {
			return nil, known
		}
		if c.address != nil {
			return nil, c.address.broken(err)
		}
		return nil, &unreachable{message: err.Error()}
	}
}

func (c *Client) exchange(ctx context.Context, method, path string, body []byte, content, shown string) (*answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.URL.Opaque = path // As it is: net/url would change a step's name.
	if body == nil {
		request.Body, request.ContentLength = http.NoBody, 0
	} else {
		request.Header.Set("Content-Type", content)
	}
	if shown != "" {
		request.Header.Set("Authorization", "Bearer "+shown)
	}
	request.Header["X-Idempotency-Key"] = nil // For net/http: it may be repeated on a new connection. Not sent.
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	got := &answer{status: response.StatusCode, word: response.Header.Get("Once-Answer"),
		content: response.Header.Get("Content-Type"), retry: response.Header.Get("Retry-After")}
	if c.address != nil {
		got.advice = c.address.advice(got.status)
	}
	if response.ContentLength < 0 && len(response.TransferEncoding) == 0 { // It would end where the connection is cut.
		return nil, &unreachable{message: "the answer is no HTTP of `once serve`"}
	}
	got.body, err = io.ReadAll(io.LimitReader(response.Body, maxBodyBytes+1))
	if err == nil && len(got.body) > maxBodyBytes {
		return nil, &unreachable{message: "the answer is too large"}
	}
	return got, err
}

// randomID is read from the kernel at this moment: a generator inside the process would draw the same in its copies.
func randomID() (string, error) {
	file, err := os.Open("/dev/urandom")
	if err != nil {
		return "", err
	}
	defer file.Close()
	var id [16]byte
	if _, err := io.ReadFull(file, id[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(id[:]), nil
}

// pauses wait for 10 ms, doubling to 1 s.
type pauses struct{ next time.Duration }

func (p *pauses) wait(ctx context.Context, most time.Duration) error {
	p.next = min(max(2*p.next, 10*time.Millisecond), time.Second)
	return sleep(ctx, min(p.next, max(most, 0)))
}

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
