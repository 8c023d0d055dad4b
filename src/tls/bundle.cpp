#include "tls/bundle.hpp"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/free_by.hpp"

namespace once::tls {

namespace {

using Name = std::unique_ptr<X509_NAME, text::FreeBy<X509_NAME_free>>;
using Certificate = std::unique_ptr<X509, text::FreeBy<X509_free>>;
using File = std::unique_ptr<BIO, text::FreeBy<BIO_free_all>>;

struct Listed {
  Name subject;
  std::string der;
  bool with_trust = false;  // In OpenSSL's own form, which has the certificate's allowed uses.
};
using Bundle = std::vector<Listed>;

// Reads DER from its beginning; errors are in OpenSSL's queue.
class Der {
 public:
  explicit Der(std::string_view bytes)
      : at_(reinterpret_cast<const unsigned char*>(bytes.data())), size_(length(bytes)) {}

  // The header of the next element, which `length` bytes of content follow. False: no element.
  bool header() {
    const unsigned char* const before = at_;
    if ((ASN1_get_object(&at_, &length_, &tag_, &class_, size_) & 0x81) != 0) return false;  // 1: no length.
    size_ -= at_ - before;
    return true;
  }
  bool skip() {
    if (!header()) return false;
    at_ += length_;
    size_ -= length_;
    return true;
  }
  [[nodiscard]] bool version_is_next() const {
    Der next = *this;
    return next.header() && next.class_ == V_ASN1_CONTEXT_SPECIFIC && next.tag_ == 0;
  }
  Name name() { return Name(d2i_X509_NAME(nullptr, &at_, size_)); }

 private:
  static long length(std::string_view bytes) { return static_cast<long>(bytes.size()); }

  const unsigned char* at_;
  long size_;
  long length_ = 0;
  int tag_ = 0;
  int class_ = 0;
};

// RFC 5280, section 4.1: Certificate { TBSCertificate { version (absent in the first), serialNumber, signature, issuer,
// validity, subject ...
Name subject_of(std::string_view certificate) {
  Der der(certificate);
  if (!der.header() || !der.header()) return nullptr;
  if (der.version_is_next() && !der.skip()) return nullptr;
  for (int field = 0; field < 4; ++field) {
    if (!der.skip()) return nullptr;
  }
  return der.name();
}

// Empty: unreadable, or no certificate.
Bundle read_bundle(const std::string& path) {
  Bundle bundle;
  const File file(BIO_new_file(path.c_str(), "r"));
  if (!file) return {};
  while (true) {
    char* kind = nullptr;
    char* header = nullptr;
    unsigned char* data = nullptr;
    long size = 0;
    if (PEM_read_bio(file.get(), &kind, &header, &data, &size) != 1) break;
    const std::string_view type = kind;
    Listed listed{nullptr, std::string(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size)),
                  type == PEM_STRING_X509_TRUSTED};
    const bool is_certificate = listed.with_trust || type == PEM_STRING_X509 || type == PEM_STRING_X509_OLD;
    OPENSSL_free(kind);
    OPENSSL_free(header);
    OPENSSL_free(data);
    if (!is_certificate) continue;
    listed.subject = subject_of(listed.der);
    if (!listed.subject) return {};
    bundle.push_back(std::move(listed));
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) return {};
  if (!bundle.empty()) ERR_clear_error();  // That was the end of the file.
  return bundle;
}

Certificate decode(const Listed& listed) {
  const auto* at = reinterpret_cast<const unsigned char*>(listed.der.data());
  const auto size = static_cast<long>(listed.der.size());
  return Certificate(listed.with_trust ? d2i_X509_AUX(nullptr, &at, size) : d2i_X509(nullptr, &at, size));
}

// X509_LOOKUP_METHOD: adds the certificates of that name to the store, and returns one of them. The store finds the
// others itself.
int find(X509_LOOKUP* lookup, X509_LOOKUP_TYPE type, const X509_NAME* name, X509_OBJECT* found) {
  if (type != X509_LU_X509) return 0;
  const auto* const bundle = static_cast<const Bundle*>(X509_LOOKUP_get_method_data(lookup));
  X509_STORE* const store = X509_LOOKUP_get_store(lookup);
  bool added = false;
  for (const Listed& listed : *bundle) {
    if (X509_NAME_cmp(listed.subject.get(), name) != 0) continue;
    const Certificate certificate = decode(listed);
    added = (certificate && X509_STORE_add_cert(store, certificate.get()) == 1) || added;
  }
  if (!added) return 0;
  // The store's object, not ours: another handshake may have added an equal one before.
  X509_STORE_lock(store);
  X509_OBJECT* const kept = X509_OBJECT_retrieve_by_subject(X509_STORE_get0_objects(store), type, name);
  X509* const certificate = kept == nullptr ? nullptr : X509_OBJECT_get0_X509(kept);
  X509_STORE_unlock(store);
  if (certificate == nullptr || X509_OBJECT_set1_X509(found, certificate) != 1) return 0;
  X509_free(certificate);  // The caller takes its own reference; the store keeps one.
  return 1;
}

void drop(X509_LOOKUP* lookup) { delete static_cast<Bundle*>(X509_LOOKUP_get_method_data(lookup)); }

// Made once, and never freed. Null: no memory.
X509_LOOKUP_METHOD* bundle_method() {
  static X509_LOOKUP_METHOD* const method = [] {
    X509_LOOKUP_METHOD* const made = X509_LOOKUP_meth_new("once");
    if (made != nullptr) {
      X509_LOOKUP_meth_set_get_by_subject(made, find);
      X509_LOOKUP_meth_set_free(made, drop);
    }
    return made;
  }();
  return method;
}

}  // namespace

bool trust_bundle(ssl_ctx_st* context, const std::string& path) {
  ERR_clear_error();
  auto bundle = std::make_unique<Bundle>(read_bundle(path));
  if (bundle->empty() || bundle_method() == nullptr) return false;
  X509_LOOKUP* const lookup = X509_STORE_add_lookup(SSL_CTX_get_cert_store(context), bundle_method());
  return lookup != nullptr && X509_LOOKUP_set_method_data(lookup, bundle.release()) == 1;
}

}  // namespace once::tls
