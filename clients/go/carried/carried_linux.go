//go:build amd64 || arm64

package carried

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"once.invalid/once"
)

func init() { once.RegisterProgram(find) }

// find writes the program once for each of its versions. What lies there is this user's: nobody else can write it.
func find() (string, error) {
	if program == "" {
		return "", nil
	}
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("once-program-%d", os.Geteuid()))
	if cache, err := os.UserCacheDir(); err == nil && os.MkdirAll(cache, 0o700) == nil {
		directory = filepath.Join(cache, "once-program")
	}
	if err := os.Mkdir(directory, 0o700); err != nil && !os.IsExist(err) {
		return "", fmt.Errorf("cannot keep the program: %w", err)
	}
	info, err := os.Lstat(directory)
	if err != nil {
		return "", fmt.Errorf("cannot keep the program: %w", err)
	}
	if !info.IsDir() || !isOwn(info) {
		return "", fmt.Errorf("%s is not a directory that only this user can write: the program is not kept there", directory)
	}
	path := filepath.Join(directory, "once-"+sum)
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && isOwn(info) && info.Size() == int64(len(program)) {
		return path, nil
	}
	return path, write(directory, path)
}

func isOwn(info os.FileInfo) bool {
	about, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(about.Uid) == os.Geteuid() && info.Mode().Perm()&0o022 == 0
}

// write renames it to its place when it is whole.
func write(directory, path string) error {
	// A process that is forked meanwhile would have it open for writing: then nobody could start it.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	file, err := os.CreateTemp(directory, "new-")
	if err != nil {
		return fmt.Errorf("cannot write the program: %w", err)
	}
	defer os.Remove(file.Name()) // Unless it has its name by then.
	_, err = file.WriteString(program)
	if err == nil {
		err = file.Chmod(0o700)
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot write the program: %w", err)
	}
	return nil
}
