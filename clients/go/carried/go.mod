module once.invalid/once/carried

go 1.21

require once.invalid/once v0.0.0

replace once.invalid/once => ../
