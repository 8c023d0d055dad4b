// The name of a certificate's holder, as a text.
#pragma once

#include <string>
#include <string_view>

namespace once::tls {

// The subject as RFC 4514 writes it, in ASCII: "CN=billing,O=Shop". Without a subject the certificate's only URI:
// "URI:spiffe://shop.example/billing". Two certificates have one text only if both have the same name, whatever the
// encoding of its strings (RFC 5280, section 7.1). Empty: the certificate has no such name, or cannot be read. `der`:
// as of Stream::certificate().
std::string certificate_name(std::string_view der);

}  // namespace once::tls
