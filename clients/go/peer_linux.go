package once

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// requireTrusted is for a connection to the socket at path. Another user's server would see every request, and could invent
// results.
func requireTrusted(connection net.Conn, path string, isOnDemand bool) error {
	raw, err := connection.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var peer *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || failed != nil {
		return fmt.Errorf("who the server at %s is cannot be found out: %v, %v", path, err, failed)
	}
	var directory syscall.Stat_t
	if err := syscall.Stat(filepath.Dir(path), &directory); err != nil {
		return &os.PathError{Op: "stat", Path: filepath.Dir(path), Err: err}
	}
	if why := distrust(peer.Uid, uint32(os.Geteuid()), isOnDemand, directory.Uid, directory.Mode); why != "" {
		return &unreachable{message: fmt.Sprintf("the server at %s %s", path, why), fatal: true}
	}
	return nil
}

// distrust says why a server of user peer is not used, if it is not. A server on demand is this user's. One that the caller
// has named may be another user's, who shares it: but not where any user could have made its socket first.
func distrust(peer, own uint32, isOnDemand bool, directoryOwner, directoryMode uint32) string {
	switch {
	case isOnDemand && peer != own:
		return fmt.Sprintf("belongs to user %d", peer)
	case isOnDemand || peer == own || peer == 0 || peer == directoryOwner || directoryMode&syscall.S_IWOTH == 0:
		return ""
	}
	return fmt.Sprintf("belongs to user %d, and every user can write its directory: use one that only the server's user can write", peer)
}
