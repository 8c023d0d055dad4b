//go:build !linux

package once

import "time"

var start = time.Now()

func uptime() time.Duration { return time.Since(start) }
