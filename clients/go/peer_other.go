//go:build !linux

package once

import "net"

func requireTrusted(net.Conn, string, bool) error { return nil }
