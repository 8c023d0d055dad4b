module once.invalid/once

go 1.21
