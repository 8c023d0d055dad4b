#include "fake_aws/certificate.hpp"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <once/error.hpp>
#include <once/platform/system.hpp>

namespace once::testing::fake {
namespace {

using Extension = std::unique_ptr<X509_EXTENSION, text::FreeBy<X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, text::FreeBy<BIO_free_all>>;

constexpr long day_s = 24 * 3600;

void need(bool good, const char* what) {
  if (!good) throw Exception(ErrorKind::misuse, std::string("a test's certificate: OpenSSL cannot ") + what);
}

}  // namespace

Key make_key() {
  Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"));  // EVP_EC_gen() casts const away.
  need(key != nullptr, "make a key");
  return key;
}

void extend(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  need(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1, "add an extension");
}

Certificate make_certificate(const char* name, EVP_PKEY* key, long from_s, long until_s) {
  Certificate certificate(X509_new());
  need(certificate != nullptr, "make a certificate");
  // Clients may remember a certificate by issuer and number, so each has its own.
  std::uint32_t number = 0;
  system_random()->fill({reinterpret_cast<std::uint8_t*>(&number), sizeof number});
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), number);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), until_s);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  return certificate;
}

void sign(X509* certificate, X509* issuer, EVP_PKEY* key) {
  need(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
           X509_sign(certificate, key, EVP_sha256()) > 0,
       "sign a certificate");
}

std::string pem(X509* certificate) {
  const Bio out(BIO_new(BIO_s_mem()));
  need(out != nullptr && PEM_write_bio_X509(out.get(), certificate) == 1, "write a certificate");
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

Authority::Authority(const char* name)
    : key(make_key()), certificate(make_certificate(name, key.get(), -10 * day_s, 30 * day_s)) {
  extend(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  extend(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  extend(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash");
  sign(certificate.get(), certificate.get(), key.get());
}

std::string equip(SSL_CTX* context, FakeServerOptions::Certificate kind) {
  const Authority authority("Authority of a test");

  const bool expired = kind == FakeServerOptions::Certificate::expired;
  const bool wrong = kind == FakeServerOptions::Certificate::wrong_name;
  const Key key = make_key();
  const Certificate certificate =
      make_certificate("Server of a test", key.get(), -5 * day_s, expired ? -1 * day_s : 30 * day_s);
  X509* const issuer = authority.certificate.get();
  extend(certificate.get(), issuer, NID_basic_constraints, "critical,CA:FALSE");
  extend(certificate.get(), issuer, NID_ext_key_usage, "serverAuth,clientAuth");
  extend(certificate.get(), issuer, NID_authority_key_identifier, "keyid");
  extend(certificate.get(), issuer, NID_subject_alt_name,
         wrong ? "DNS:somebody.else.example" : "IP:127.0.0.1,DNS:localhost");
  sign(certificate.get(), issuer, authority.key.get());

  need(SSL_CTX_use_certificate(context, certificate.get()) == 1 && SSL_CTX_use_PrivateKey(context, key.get()) == 1,
       "use the certificate");
  return pem(issuer);
}

}  // namespace once::testing::fake
