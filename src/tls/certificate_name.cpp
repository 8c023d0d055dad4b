#include "tls/certificate_name.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>

#include "text/free_by.hpp"

namespace once::tls {

namespace {

std::string subject_of(const X509& certificate) {
  const X509_NAME* const name = X509_get_subject_name(&certificate);
  const std::unique_ptr<BIO, text::FreeBy<BIO_free_all>> out(BIO_new(BIO_s_mem()));
  // What is special in a value is escaped, and what is no text is written as hexadecimal digits.
  if (!out || X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253) < 0) return {};
  const char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

std::string uri_of(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, text::FreeBy<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::string found;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (!found.empty()) return {};
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    const std::string_view text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                static_cast<std::size_t>(ASN1_STRING_length(uri)));
    const bool is_visible = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; });
    if (text.empty() || !is_visible) return {};
    found = "URI:" + std::string(text);
  }
  return found;
}

}  // namespace

std::string certificate_name(std::string_view der) {
  const auto* at = reinterpret_cast<const unsigned char*>(der.data());
  const std::unique_ptr<X509, text::FreeBy<X509_free>> certificate(
      d2i_X509(nullptr, &at, static_cast<long>(der.size())));
  std::string name;
  if (certificate) {
    const bool has_subject = X509_NAME_entry_count(X509_get_subject_name(certificate.get())) > 0;
    name = has_subject ? subject_of(*certificate) : uri_of(*certificate);
  }
  ERR_clear_error();  // Else a later step of TLS on this thread would take these errors for its own.
  return name;
}

}  // namespace once::tls
