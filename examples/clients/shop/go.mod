module once.example/shop

go 1.21

require once.invalid/once v0.0.0

replace once.invalid/once => ../../../clients/go
