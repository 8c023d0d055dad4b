// The principal: who the client of a request is. Two clients must never share a key's answer. A client that retries
// must have the same principal, or its retry runs again. once cannot guess it, so there is no default: Options do not
// compile without a principal.
//
//   once::http::Principal::header("X-Api-Key")     distinguishes clients, and stays the same in a retry
//   once::http::Principal::given()                 the server knows: Request::principal
//   once::http::Principal::shared()                all clients are one, as for a single client service
//   once::http::jwt_principal({.key_file = ...})   a verified claim of a JWT (once/frontends/jwt.hpp)
//   once::http::Principal::function("tenant", ...) anything else
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <once/frontends/http/message.hpp>

namespace once::http {

// What a request says about its client.
struct Who {
  // Whether the client is known.
  enum class Kind : std::uint8_t {
    known,     // `name`
    missing,   // It says nothing: 400 principal-missing; 401 with a challenge.
    invalid,   // Its credentials are wrong or have expired: 401 principal-invalid.
    unstable,  // A retry would have another value: 400 principal-unstable.
  };
  Kind kind = Kind::missing;  // Says which of the other members are set.
  std::string name = {};      // Any bytes; if known, empty only where all clients share. Only its digest is stored.
  std::string_view why = {};  // For the client: a sentence of plain ASCII without quotes. Empty: the problem's own.
  std::string_view challenge = {};  // WWW-Authenticate of a 401. If missing, Options::challenge comes first.
};

// How the client of a request is found. Immutable; copies share a function.
class Principal {
 public:
  using Source = std::function<Who(const Request&)>;  // Called by several threads at once.

  // The values of these headers, all together. A request that lacks one has no principal. For API keys, passwords,
  // tokens that outlive any retry, and headers that only a gateway sets. Values that change with each retry are refused
  // (400 principal-unstable): a JWT anywhere in the value, and signatures made for each request (AWS4-HMAC-SHA256,
  // Signature, Digest, OAuth 1.0, DPoP ...). Rules refuses the names of headers that are new in each request: those
  // with Signature in them, DPoP, Date, X-Amz-Date, X-Amz-Security-Token, X-Request-Id, traceparent.
  static Principal header(std::string name) { return headers({std::move(name)}); }
  static Principal headers(std::vector<std::string> names);  // Throws Exception(misuse) for none.

  // Request::principal, which the server sets. It is the last argument of the adapters (once/frontends/http/beast.hpp,
  // httplib.hpp), a client certificate's subject in `once proxy`, and the value of HttpOptions::principal in
  // once::lambda::http(). `what`: for messages, and to detect changed settings.
  static Principal given(std::string what = "what the server says");

  // All clients share their keys: a client that sends another's key gets the other's answer.
  static Principal shared();

  // A function of the request that returns the client's name, or empty if the request has none. Several threads may
  // call it at once. `what`: for messages, and to detect changed settings.
  static Principal function(std::string what, std::function<std::string(const Request&)> name_of);

  // The same, for functions that return more than a name. `reads`: the headers that `who` reads.
  static Principal source(std::string what, std::vector<std::string> reads, Source who);

  // For programs that fill in Options step by step. Rules refuses it.
  static Principal unsaid();

  // Who the request's client is. Its views live as long as the request and this.
  [[nodiscard]] Who who(const Request& request) const;

  [[nodiscard]] bool is_said() const noexcept { return kind_ != Kind::unsaid; }  // False: unsaid().
  // Reads Request::principal, or a function may.
  [[nodiscard]] bool takes_given() const noexcept { return kind_ == Kind::given || kind_ == Kind::source; }
  [[nodiscard]] bool is_given() const noexcept { return kind_ == Kind::given; }  // It is given().
  // Costly to find, for example by checking a signature.
  [[nodiscard]] bool is_costly() const noexcept { return kind_ == Kind::source; }
  // The headers that it reads. Empty for given() and shared(), and for function(), which may read any.
  [[nodiscard]] std::span<const std::string> reads() const noexcept { return names_; }

  // "header X-Api-Key". Equal texts mean the same principal, except for two functions with the same `what`.
  [[nodiscard]] std::string what() const;

  // Functions are equal if they are copies of one another.
  friend bool operator==(const Principal&, const Principal&) = default;

 private:
  enum class Kind : std::uint8_t { unsaid, headers, given, shared, source };
  explicit Principal(Kind kind) noexcept : kind_(kind) {}

  Kind kind_;
  std::vector<std::string> names_ = {};  // For headers.
  std::string what_ = {};                // For source and given.
  std::shared_ptr<const Source> source_ = {};
};

}  // namespace once::http
