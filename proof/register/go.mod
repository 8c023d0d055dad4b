// The proof's checker of the record as a compare-and-swap register: docs/proof.md.
module once.example/proof

go 1.18

require github.com/anishathalye/porcupine v1.3.1
