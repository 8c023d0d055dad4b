package carried

import _ "embed"

// Both are empty in the sources. tools/client-packages has the program.
var (
	//go:embed bin/linux_amd64
	program string
	//go:embed bin/linux_amd64.sha256
	sum string
)
