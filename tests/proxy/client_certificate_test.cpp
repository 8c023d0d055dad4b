// Clients that must show a certificate: which are accepted, as whom, and for how long.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/error.hpp>

#include "tls/context.hpp"
#include "tls_test.hpp"

namespace once::proxy {
namespace client_certificate_test {

namespace fake = once::testing::fake;
using ::testing::HasSubstr;

constexpr long day_s = 24 * 3600;

// What differs from a good certificate.
struct Wanted {
  std::function<void(X509_NAME*)> subject;  // Empty: what `name` says.
  const char* purpose = "clientAuth";
  long until_s = 5 * day_s;
};

struct Shown {
  Shown(const fake::Authority& authority, const char* name, const Wanted& wanted = {})
      : key(fake::make_key()), certificate(fake::make_certificate(name, key.get(), -5 * day_s, wanted.until_s)) {
    if (wanted.subject) {
      const std::unique_ptr<X509_NAME, text::FreeBy<X509_NAME_free>> subject(X509_NAME_new());
      wanted.subject(subject.get());
      X509_set_subject_name(certificate.get(), subject.get());
    }
    fake::extend(certificate.get(), authority.certificate.get(), NID_ext_key_usage, wanted.purpose);
    fake::sign(certificate.get(), authority.certificate.get(), authority.key.get());
  }
  void show_in(SSL_CTX* context) const {
    SSL_CTX_use_certificate(context, certificate.get());
    SSL_CTX_use_PrivateKey(context, key.get());
  }
  fake::Key key;
  fake::Certificate certificate;
};

void add(X509_NAME* name, const char* field, int type, std::string_view value) {
  X509_NAME_add_entry_by_txt(name, field, type, reinterpret_cast<const unsigned char*>(value.data()),
                             static_cast<int>(value.size()), -1, 0);
}

class ClientCertificateTest : public ProxyTlsTest {
 protected:
  void start_asking() {
    options.certificate = write_files(server);
    options.client_ca_file = write_file("clients.pem", fake::pem(authority.certificate.get()));
    rules.principal = http::Principal::given();
    listen_to_notices();
    start(counting());
  }
  [[nodiscard]] Context showing(const Shown* shown, int version = TLS1_3_VERSION) const {
    Context context = believing(server.authority);
    SSL_CTX_set_max_proto_version(context.get(), version);
    if (shown != nullptr) shown->show_in(context.get());
    return context;
  }
  // One request on a new connection. Empty: it was not let in.
  std::string ask_as(const Shown* shown, const std::string& request, int version = TLS1_3_VERSION) {
    Line line = client();
    if (!line.begin_tls(showing(shown, version).get(), false)) return {};
    line.write(request);
    const auto answer = line.read_message();
    return answer ? answer->body : std::string();
  }

  const Identity server;
  const fake::Authority authority{"Clients of a test"};
};

TEST_F(ClientCertificateTest, WhoeverHasNoGoodOneIsNotLetInAndBothSidesAreToldWhy) {
  const fake::Authority strangers("Strangers");
  const Shown alice(authority, "alice");
  const Shown stranger(strangers, "alice");
  const Shown expired(authority, "alice", {.subject = {}, .until_s = -day_s});
  const Shown not_for_clients(authority, "alice", {.subject = {}, .purpose = "serverAuth"});
  struct Case {
    const Shown* shown;
    std::string reason;
    int alert;
    std::string told;
  };
  const std::vector<Case> cases{
      {nullptr, "missing", SSL_AD_CERTIFICATE_REQUIRED, "showed no certificate, but must (client-ca)"},
      {&stranger, "untrusted", SSL_AD_UNKNOWN_CA,
       "no authority in client-ca signed the client's certificate (unable to get local issuer certificate)"},
      {&expired, "expired", SSL_AD_CERTIFICATE_EXPIRED, "is not valid now (certificate has expired)"},
      {&not_for_clients, "bad", SSL_AD_UNSUPPORTED_CERTIFICATE, "is invalid (unsuitable certificate purpose)"}};
  for (const Case& one : cases) {
    notices.clear();
    start_asking();
    ERR_clear_error();
    Line line = client();
    ASSERT_TRUE(line.begin_tls(showing(one.shown).get(), false));
    line.write(post("k"));
    EXPECT_EQ(line.read_all(), "") << one.reason;
    EXPECT_FALSE(line.ends_with_reset()) << one.reason;  // Which could overtake the alert.
    EXPECT_EQ(ERR_GET_REASON(ERR_peek_error()), SSL_AD_REASON_OFFSET + one.alert) << one.reason;
    EXPECT_TRUE(counted("client-certificate-" + one.reason)) << one.reason;
    EXPECT_THAT(noticed(), HasSubstr(one.told));
    EXPECT_EQ(ask_as(one.shown, post("k"), TLS1_2_VERSION), "") << one.reason;
    EXPECT_TRUE(counted("client-certificate-" + one.reason, "clients", 2)) << one.reason;
    EXPECT_EQ(lines(), 0U);
    proxy.reset();
  }
  start_asking();
  EXPECT_EQ(ask_as(&alice, post("k")), "run 1");
  EXPECT_EQ(ask_as(&alice, post("l"), TLS1_2_VERSION), "run 2");
}

TEST_F(ClientCertificateTest, AKeyIsOfTheSubjectAndOfNobodyElse) {
  start_asking();
  const Shown alice(authority, "alice");
  const Shown renewed(authority, "alice");
  const Shown bob(authority, "bob");
  EXPECT_EQ(ask_as(&alice, post("k")), "run 1");
  EXPECT_EQ(ask_as(&bob, post("k")), "run 2");
  EXPECT_EQ(ask_as(&renewed, post("k"), TLS1_2_VERSION), "run 1");
  // On one connection too.
  Line line = client();
  ASSERT_TRUE(line.begin_tls(showing(&bob).get(), false));
  line.write(post("k") + post("l") + post("k"));
  EXPECT_EQ(line.read_message()->body, "run 2");
  EXPECT_EQ(line.read_message()->body, "run 3");
  EXPECT_EQ(line.read_message()->body, "run 2");
}

TEST_F(ClientCertificateTest, SubjectsThatPrintAlikeAreTwo) {
  start_asking();
  using Subject = std::function<void(X509_NAME*)>;
  const auto common = [](std::string_view value, int type = V_ASN1_UTF8STRING) -> Subject {
    return [value = std::string(value), type](X509_NAME* name) { add(name, "CN", type, value); };
  };
  const std::string long_number =
      "1.3.6.1.4.1.4294967295.4294967295.4294967295.4294967295.4294967295.4294967295.42949672";
  const auto numbered = [&](const std::string& end) -> Subject {
    return [number = long_number + end](X509_NAME* name) { add(name, number.c_str(), V_ASN1_UTF8STRING, "alice"); };
  };
  const std::vector<Subject> subjects{
      common("alice"),
      common("Alice"),
      common("alice "),
      common("alice", V_ASN1_T61STRING),  // Printed as the first.
      common(std::string_view("alice\0bob", 9)),
      common("alice\\00bob"),
      common("alice,O=shop"),
      [](X509_NAME* name) {
        add(name, "CN", V_ASN1_UTF8STRING, "alice");
        add(name, "O", V_ASN1_UTF8STRING, "shop");
      },
      [](X509_NAME* name) {
        add(name, "O", V_ASN1_UTF8STRING, "shop");
        add(name, "CN", V_ASN1_UTF8STRING, "alice");
      },
      numbered("1"),  // OpenSSL prints 79 characters of such a number, and these differ behind them.
      numbered("2"),
  };
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    const Shown shown(authority, "", {.subject = subjects[i]});
    EXPECT_EQ(ask_as(&shown, post("k")), "run " + std::to_string(i + 1));
  }
}

TEST_F(ClientCertificateTest, ASubjectWithoutANameIsNobody) {
  start_asking();
  const Shown nobody(authority, "", {.subject = [](X509_NAME* /*name*/) {}});
  EXPECT_THAT(ask_as(&nobody, post("k")), HasSubstr("urn:once:problem:principal-missing"));
  EXPECT_EQ(ask_as(&nobody, post("")), "run 1");
}

TEST_F(ClientCertificateTest, TheServiceHearsOfTheCertificateFromTheProxyOnly) {
  start_asking();
  const Shown alice(authority, "alice");
  EXPECT_EQ(ask_as(&alice, post("k", "cents=500", "Client-Cert: :Ym9i:\r\nclient-cert-chain: :Ym9i:\r\n")), "run 1");
  EXPECT_EQ(ask_as(&alice,
                   "PUT /a HTTP/1.1\r\nHost: shop\r\nClient-Cert: :Ym9i:\r\nConnection: Client-Cert\r\n"
                   "Content-Length: 0\r\n\r\n"),
            "run 2");
  std::string text = fake::pem(alice.certificate.get());  // The same in lines.
  std::erase(text, '\n');
  const std::string dashes = "-----";
  const auto begin = text.find(dashes, dashes.size()) + dashes.size();
  const std::string expected = ':' + text.substr(begin, text.find(dashes, begin) - begin) + ':';
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<std::string> told;
    for (const http::Header& header : request(i).headers) {
      if (http::same_name(header.name.substr(0, 11), "Client-Cert")) told.push_back(header.name + '=' + header.value);
    }
    EXPECT_THAT(told, ::testing::ElementsAre("Client-Cert=" + expected));
  }
  EXPECT_THAT(ask_as(&alice, post("l", "cents=500", "Client_Cert: :Ym9i:\r\n")), HasSubstr("malformed-request"));
  EXPECT_EQ(runs(), 2U);
}

// All who are behind one would be one client.
TEST_F(ClientCertificateTest, ABalancersCertificateIsNobodysBehindIt) {
  options.trusted_proxies = {parse_network("127.0.0.1", "test")};
  start_asking();
  const Shown balancer(authority, "balancer");
  EXPECT_THAT(ask_as(&balancer, post("k")), HasSubstr("urn:once:problem:principal-missing"));
  EXPECT_EQ(ask_as(&balancer, post("", "cents=500", "Client-Cert: :Ym9i:\r\n")), "run 1");
  EXPECT_EQ(request(0).header("Client-Cert"), ":Ym9i:");
  proxy.reset();
  options.proxy_protocol = std::exchange(options.trusted_proxies, {});
  start_asking();
  for (const bool client_has_tls : {true, false}) {
    std::string header("\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x14\xC0\0\2\1\x0A\0\0\1\x30\x39\1\xBB\x20\0\5", 31);
    header += client_has_tls ? '\1' : '\0';
    header += std::string(4, '\0');
    Line line = client();
    line.write(header);
    ASSERT_TRUE(line.begin_tls(showing(&balancer).get(), false));
    line.write(post("k"));
    EXPECT_THAT(line.read_message()->body, HasSubstr(client_has_tls ? "principal-missing" : "run 2"));
  }
}

// As clients keep what lets them begin sooner.
class ResumptionTest : public ClientCertificateTest {
 protected:
  using Session = std::unique_ptr<SSL_SESSION, text::FreeBy<SSL_SESSION_free>>;
  struct Answer {
    bool resumed = false;
    std::string body;  // Empty: not let in.
    Session session;
  };
  Answer ask_with(SSL_CTX* context, SSL_SESSION* session, const std::string& key) {
    Line line = client();
    if (!line.begin_tls(context, false, nullptr, session)) return {};
    line.write(post(key));
    const auto answer = line.read_message();
    return {.resumed = SSL_session_reused(line.tls()) == 1,
            .body = answer ? answer->body : "",
            .session = Session(SSL_get1_session(line.tls()))};
  }
};

TEST_F(ResumptionTest, AResumedSessionIsTheSameClient) {
  start_asking();
  const Shown alice(authority, "alice");
  int run = 0;
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const Context context = showing(&alice, version);
    const std::string key = "k" + std::to_string(version);
    const std::string body = "run " + std::to_string(++run);
    Answer last = ask_with(context.get(), nullptr, key);
    EXPECT_EQ(last.body, body);
    EXPECT_FALSE(last.resumed);
    // A ticket of a ticket, and one shown by a client that has no certificate any more.
    for (const Context& later : {context, showing(nullptr, version)}) {
      last = ask_with(later.get(), last.session.get(), key);
      EXPECT_EQ(last.body, body);
      EXPECT_TRUE(last.resumed);
    }
  }
  EXPECT_EQ(runs(), 2U);
}

TEST_F(ResumptionTest, OtherAuthoritiesEndSessionsAndNotConnections) {
  start_asking();
  const Shown alice(authority, "alice");
  const fake::Authority next("Clients of a test");  // Called the same.
  const Shown renewed(next, "alice");
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const std::string key = "k" + std::to_string(version);
    static_cast<void>(write_file("clients.pem", fake::pem(authority.certificate.get())));
    proxy->reload_certificates();
    const Context context = showing(&alice, version);
    Line kept = client();
    ASSERT_TRUE(kept.begin_tls(context.get(), false));
    const Answer before = ask_with(context.get(), nullptr, key);
    EXPECT_THAT(before.body, HasSubstr("run "));
    static_cast<void>(write_file("clients.pem", "no certificate"));
    EXPECT_THROW(proxy->reload_certificates(), Exception);
    EXPECT_TRUE(ask_with(context.get(), before.session.get(), key).resumed);
    static_cast<void>(write_file("clients.pem", fake::pem(next.certificate.get())));
    proxy->reload_certificates();
    EXPECT_EQ(ask_with(context.get(), before.session.get(), key).body, "");
    EXPECT_EQ(ask_as(&alice, post(key), version), "");
    EXPECT_EQ(ask_as(&renewed, post(key), version), before.body);
    kept.write(post(key));
    EXPECT_EQ(kept.read_message()->body, before.body);
  }
}

// Without a socket: the server believes that it is three days ago, but what a ticket says is compared with today.
TEST_F(ResumptionTest, NoSessionOutlivesACertificateThatItWasVerifiedBy) {
  const Certificate files = write_files(server);
  tls::ServerContext context(files.file, files.key_file);
  context.require_certificate(write_file("clients.pem", fake::pem(authority.certificate.get())), "--client-ca");
  X509_VERIFY_PARAM_set_time(SSL_CTX_get0_param(context.get()), std::time(nullptr) - 3 * day_s);
  // Whether the second of two connections was resumed.
  const auto resumes = [&](const Shown& shown, int version) {
    const Context own = showing(&shown, version);
    Session session;
    bool resumed = false;
    for (int i = 0; i < 2; ++i) {
      const std::unique_ptr<SSL, text::FreeBy<SSL_free>> us(SSL_new(context.get()));
      const std::unique_ptr<SSL, text::FreeBy<SSL_free>> them(SSL_new(own.get()));
      BIO* near = nullptr;
      BIO* far = nullptr;
      BIO_new_bio_pair(&near, 0, &far, 0);
      SSL_set_bio(us.get(), near, near);
      SSL_set_bio(them.get(), far, far);
      SSL_set_accept_state(us.get());
      SSL_set_connect_state(them.get());
      if (session) SSL_set_session(them.get(), session.get());
      for (int turn = 0; turn < 10; ++turn) {
        SSL_do_handshake(them.get());
        SSL_do_handshake(us.get());
      }
      EXPECT_TRUE(SSL_is_init_finished(us.get()) == 1 && SSL_is_init_finished(them.get()) == 1);
      char byte = 0;
      EXPECT_LE(SSL_read(them.get(), &byte, 1), 0);  // Only the ticket.
      resumed = SSL_session_reused(us.get()) == 1;
      session.reset(SSL_get1_session(them.get()));
      SSL_shutdown(them.get());  // What just breaks off is not resumed.
    }
    return resumed;
  };
  const Shown alice(authority, "alice");
  const Shown expired(authority, "alice", {.subject = {}, .until_s = -day_s});
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    EXPECT_TRUE(resumes(alice, version));
    EXPECT_FALSE(resumes(expired, version));
  }
}

TEST_F(ClientCertificateTest, WhatCannotBeVerifiedDoesNotStart) {
  Upstream nobody([](Line&) {});
  const auto problem = [&]() -> std::string {
    try {
      start_for(nobody.port());
    } catch (const Exception& exception) {
      EXPECT_EQ(exception.kind(), ErrorKind::misuse);
      return exception.what();
    }
    return "no problem";
  };
  rules.principal = http::Principal::given();
  EXPECT_THAT(problem(), HasSubstr("name the authorities that sign them (client-ca)"));
  options.client_ca_file = write_file("clients.pem", "no certificate");
  EXPECT_THAT(problem(), HasSubstr("client-ca needs TLS: name the listener's own certificate"));
  options.certificate = write_files(server);
  EXPECT_THAT(problem(), HasSubstr("cannot be read from '" + options.client_ca_file + "' (--client-ca)"));
  static_cast<void>(write_file("clients.pem", fake::pem(authority.certificate.get())));
  rules.principal = http::Principal::header("client-cert");
  EXPECT_THAT(problem(), HasSubstr("a client could send anything"));
  rules.principal = http::Principal::given();
  EXPECT_EQ(problem(), "no problem");
  // The same for rules that come later.
  http::Options others = rules;
  others.principal = http::Principal::header("Client-Cert");
  EXPECT_THROW(proxy->set_rules(others), Exception);
  const Shown alice(authority, "alice");
  proxy.reset();
  start_asking();
  EXPECT_THROW(proxy->set_rules(others), Exception);
  EXPECT_EQ(ask_as(&alice, post("k")), "run 1");
}

// Only those whom one authority among many has signed.
TEST_F(ClientCertificateTest, AnAuthorityInBetweenWillDo) {
  const fake::Authority root("Root");
  const auto below = [&](const char* name) {
    fake::Authority made(name);
    fake::Certificate certificate = fake::make_certificate(name, made.key.get(), -day_s, day_s);
    fake::extend(certificate.get(), root.certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
    fake::sign(certificate.get(), root.certificate.get(), root.key.get());
    made.certificate = std::move(certificate);
    return made;
  };
  const fake::Authority ours = below("Ours");
  const fake::Authority theirs = below("Theirs");
  start_asking();
  static_cast<void>(write_file("clients.pem", fake::pem(ours.certificate.get())));
  proxy->reload_certificates();
  const Shown alice(ours, "alice");
  const Shown mallory(theirs, "alice");
  EXPECT_EQ(ask_as(&alice, post("k")), "run 1");
  EXPECT_EQ(ask_as(&mallory, post("k")), "");
}

}  // namespace client_certificate_test
}  // namespace once::proxy
