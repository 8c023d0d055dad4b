package once

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// address is a server's that is not on a Unix socket.
type address struct {
	host, port string
	url        string // As "https://host:port".
	isTLS      bool
	token      *token // Nil if a client certificate is shown.

	caFile, certFile, keyFile string
	wasUsable                 atomic.Bool
}

// needsNone refuses what is for an address.
func (c *Config) needsNone(why string) error {
	for _, one := range []struct{ name, value string }{
		{"TokenFile", c.TokenFile}, {"CAFile", c.CAFile}, {"CertFile", c.CertFile}, {"KeyFile", c.KeyFile},
	} {
		if one.value != "" {
			return fmt.Errorf("once: %s is for a server at an address%s", one.name, why)
		}
	}
	return nil
}

// variable refuses an empty one. It is a mistake, such as another variable that is missing, and must not choose another
// server, or trust more authorities.
func variable(name string) (string, error) {
	text, isSet := os.LookupEnv(name)
	if isSet && text == "" {
		return "", fmt.Errorf("once: %s is empty: unset it, or give it a value", name)
	}
	return text, nil
}

func isHost(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(letter rune) bool { return letter <= ' ' || letter > '~' || letter == '%' || letter == '\\' })
}

func isPort(text string) bool {
	number, err := strconv.ParseUint(text, 10, 16)
	return text == "" || (err == nil && number > 0)
}

func newAddress(config Config) (*address, error) {
	if strings.Contains(config.Server, "@") { // Not repeated: it may be a secret.
		return nil, errors.New("once: the server's URL has a user or a token in it, where logs would show it: name a file with the token in TokenFile or ONCE_TOKEN_FILE")
	}
	shown, _, _ := strings.Cut(config.Server, "?")
	shown, _, _ = strings.Cut(shown, "#")
	at, err := url.Parse(config.Server)
	if err != nil || (at.Scheme != "http" && at.Scheme != "https") || !isHost(at.Hostname()) || (at.Path != "" && at.Path != "/") || shown != config.Server ||
		!isPort(at.Port()) || (at.Scheme == "http" && at.Port() == "") {
		return nil, fmt.Errorf("once: the server %q is none of unix:PATH, https://HOST:PORT and http://127.0.0.1:PORT", shown)
	}
	a := &address{host: at.Hostname(), port: at.Port(), isTLS: at.Scheme == "https"}
	if a.isTLS && a.port == "" {
		a.port = "443"
	}
	if !a.isTLS {
		if a.host == "localhost" {
			a.host = "127.0.0.1"
		}
		if ip := net.ParseIP(a.host); ip == nil || !ip.IsLoopback() {
			return nil, fmt.Errorf("once: the server %q would get the token and every result unencrypted, and anyone on the way could change them: use https://, or http:// to 127.0.0.1", shown)
		}
		if config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" {
			return nil, errors.New("once: CAFile, CertFile and KeyFile are for https://")
		}
	}
	if (config.CertFile == "") != (config.KeyFile == "") {
		return nil, errors.New("once: a client certificate needs both CertFile and KeyFile")
	}
	if config.CertFile != "" && config.TokenFile != "" {
		return nil, errors.New("once: give TokenFile, or CertFile with KeyFile, not both: a server takes one of them")
	}
	tokenFile := ""
	if config.CertFile == "" {
		if tokenFile = config.TokenFile; tokenFile == "" {
			if tokenFile, err = variable("ONCE_TOKEN_FILE"); err != nil {
				return nil, err
			}
		}
		if tokenFile == "" {
			return nil, fmt.Errorf("once: the server %q needs a token: set TokenFile or ONCE_TOKEN_FILE", shown)
		}
	}
	a.caFile, a.certFile, a.keyFile = config.CAFile, config.CertFile, config.KeyFile
	if a.isTLS && a.caFile == "" {
		if a.caFile, err = variable("ONCE_CA_FILE"); err != nil {
			return nil, err
		}
	}
	for _, file := range []*string{&tokenFile, &a.caFile, &a.certFile, &a.keyFile} {
		if *file == "" {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return nil, err
		}
	}
	if tokenFile != "" {
		a.token = newToken(tokenFile)
	}
	a.url = at.Scheme + "://" + net.JoinHostPort(a.host, a.port)
	return a, nil
}

// dialTLS reads the files anew, so that those that were replaced count for the next connection. The certificate and the
// name are verified, as crypto/tls does it by default. No session is resumed.
func (a *address) dialTLS(ctx context.Context, network, where string) (net.Conn, error) {
	config := &tls.Config{ServerName: a.host, MinVersion: tls.VersionTLS12}
	if a.caFile != "" {
		text, err := os.ReadFile(a.caFile)
		if err != nil {
			return nil, a.unusable(err.Error())
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, a.unusable(fmt.Sprintf("the file %s has no certificate in PEM", a.caFile))
		}
	}
	if a.certFile != "" {
		pair, err := tls.LoadX509KeyPair(a.certFile, a.keyFile)
		if err != nil {
			return nil, a.unusable(fmt.Sprintf("cannot use %s and %s: %v", a.certFile, a.keyFile, err))
		}
		// Whatever authorities the server names: it says why it refuses one.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	a.wasUsable.Store(true)
	connection, err := new(net.Dialer).DialContext(ctx, network, where)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(connection, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		connection.Close()
		return nil, err
	}
	return secured, nil
}

// unusable is of files. Those that were good before are just being replaced, perhaps.
func (a *address) unusable(message string) *unreachable {
	return &unreachable{message: message, fatal: !a.wasUsable.Load()}
}

// broken says what to do about an error of TLS. A certificate that is refused stays so: trying again soon is of no use.
func (a *address) broken(err error) *unreachable {
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) {
		why := fmt.Sprintf("the certificate of %s is not accepted: %v", a.url, unverified.Err)
		var unknown x509.UnknownAuthorityError
		if errors.As(err, &unknown) {
			why += "; name its authority's file in CAFile or ONCE_CA_FILE"
		}
		return &unreachable{message: why, fatal: true}
	}
	// With TLS 1.3 a server looks at the client's certificate after the client's first request.
	var remote *net.OpError
	if errors.As(err, &remote) && remote.Op == "remote error" && (strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), "authority")) {
		if a.certFile == "" {
			return &unreachable{message: a.url + " wants a client certificate: name it in CertFile and KeyFile", fatal: true}
		}
		return &unreachable{message: fmt.Sprintf("%s does not accept the client certificate in %s: %v", a.url, a.certFile, remote.Err), fatal: true}
	}
	return &unreachable{message: err.Error()}
}

// advice says what a person can do about a response of 401 or 403.
func (a *address) advice(status int) string {
	switch {
	case status == 403:
		return "; ask who runs the server to allow this client claims"
	case status != 401:
		return ""
	case a.token == nil:
		return "; this server wants a token: name its file in TokenFile or ONCE_TOKEN_FILE"
	}
	return fmt.Sprintf("; put a token that the server knows into %s, which is read again then", a.token.file)
}

// token is what a file has. It is read at the first request, and again when the server does not know the token any more.
type token struct {
	file  string
	mutex sync.Mutex
	text  func() string // A function, because fmt would print a text. Nil before the first request.
}

func newToken(file string) *token { return &token{file: file} }

func (t *token) read() error {
	var data []byte
	kind, err := os.Stat(t.file)
	if err == nil && !kind.Mode().IsRegular() {
		return &unreachable{message: fmt.Sprintf("the token file %s is not a regular file", t.file), fatal: true}
	}
	if err == nil && runtime.GOOS != "windows" && kind.Mode()&0o006 != 0 { // As the server has it.
		return &unreachable{message: fmt.Sprintf("the token file %s can be opened by every user of this host: chmod o-rwx it (in Kubernetes: defaultMode: 0440)", t.file), fatal: true}
	}
	if err == nil {
		data, err = os.ReadFile(t.file)
	}
	if err != nil {
		return &unreachable{message: "cannot read the token's file: " + err.Error(), fatal: true}
	}
	text := strings.TrimSpace(string(data))
	if text == "" || strings.ContainsFunc(text, func(letter rune) bool { return letter <= ' ' || letter > '~' }) {
		return &unreachable{message: fmt.Sprintf("the token file %s holds no token", t.file), fatal: true}
	}
	t.text = func() string { return text }
	return nil
}

func (t *token) get() (string, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.text == nil {
		if err := t.read(); err != nil {
			return "", err
		}
	}
	return t.text(), nil
}

// isRenewed is whether the file has another one than the server has refused.
func (t *token) isRenewed(refused string) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.read() == nil && t.text() != refused // Without a file, it is just being replaced, perhaps.
}
