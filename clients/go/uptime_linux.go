package once

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // CLOCK_BOOTTIME of <linux/time.h>.

// uptime is a clock that runs while the machine is suspended, which Go's monotonic clock does not.
func uptime() time.Duration {
	var at syscall.Timespec
	if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0); failed != 0 {
		panic("once: clock_gettime(CLOCK_BOOTTIME): " + failed.Error())
	}
	return time.Duration(at.Nano())
}
