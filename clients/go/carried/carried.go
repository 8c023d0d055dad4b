// Package carried holds the program `once` for Linux on amd64 and arm64, so that a client with a store starts it although it
// is not installed:
//
//	import _ "once.invalid/once/carried"
//
// Your executable grows by the size of the program, about 15 MB. The program is written to the user's cache directory, or
// without one to a directory of the user's below that for temporary files, when it is started for the first time.
// On other machines the import does nothing.
package carried
