// Who a client is: whose an idempotency key is. Two clients must never share a key's answer, and a client that retries
// must be the same one, or its retry runs a second time. once cannot guess it, so there is no default: Options do not
// compile without a principal.
//
//   once::http::Principal::header("X-Api-Key")     distinguishes clients, and stays the same in a retry
//   once::http::Principal::given()                 the server knows: Request::principal
//   once::http::Principal::shared()                all clients are one, as for a single client service
//   once::http::jwt_principal({.key_file = ...})   a verified claim of a JWT (once/frontends/http/jwt.hpp)
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

// What a request says of its client.
struct Who {
  enum class Kind : std::uint8_t {
    known,     // `name`
    missing,   // Nothing: 400 principal-missing; 401 with a challenge.
    invalid,   // What it says is wrong or has expired: 401 principal-invalid.
    unstable,  // A retry would have another value: 400 principal-unstable.
  };
  Kind kind = Kind::missing;
  std::string name;            // Any bytes; not empty if it is known. Only its digest is stored.
  std::string_view why;        // For the client, a sentence of plain ASCII without quotes. Empty: the problem's own.
  std::string_view challenge;  // WWW-Authenticate of a 401. Of a missing one Options::challenge comes first.
};

class Principal {
 public:
  using Source = std::function<Who(const Request&)>;

  // The values of these headers, all of them together; a request that lacks one has no principal. For API keys,
  // passwords, tokens that live longer than any retry, and headers that a gateway sets and clients cannot. Values that
  // change with each retry are recognised and refused (400 principal-unstable): JWTs, wherever they stand in the value,
  // and signatures made for each request (AWS4-HMAC-SHA256, Signature, Digest, OAuth 1.0, DPoP ...). Rules refuses the
  // names of headers for such signatures: Signature, Signature-Input, DPoP, Date, X-Amz-Date.
  static Principal header(std::string name) { return headers({std::move(name)}); }
  static Principal headers(std::vector<std::string> names);

  // Request::principal, which the server sets: the last argument of the adapters (once/frontends/http/beast.hpp,
  // httplib.hpp), a client certificate's subject in `once proxy`, what HttpOptions::principal selects in
  // once::lambda::http().
  // `what`: for messages, and so that a change of settings is noticed.
  static Principal given(std::string what = "what the server says");

  // All clients share their keys: a client that sends another's key gets the other's answer.
  static Principal shared();

  // The client by a function of the request: its name, or nothing if the request does not say. `what`: for messages,
  // and so that a change of settings is noticed. For any number of threads at a time.
  static Principal function(std::string what, std::function<std::string(const Request&)> name_of);

  // The same, for functions that return more than a name. `reads`: the headers that it reads.
  static Principal source(std::string what, std::vector<std::string> reads, Source who);

  // For programs that fill in Options bit by bit. Rules refuse it.
  static Principal unsaid();

  [[nodiscard]] Who who(const Request& request) const;

  [[nodiscard]] bool is_said() const noexcept { return kind_ != Kind::unsaid; }
  // Request::principal is read, or a function may read it.
  [[nodiscard]] bool takes_given() const noexcept { return kind_ == Kind::given || kind_ == Kind::source; }
  [[nodiscard]] bool is_given() const noexcept { return kind_ == Kind::given; }
  // It takes work to find, such as checking a signature.
  [[nodiscard]] bool is_costly() const noexcept { return kind_ == Kind::source; }
  [[nodiscard]] std::span<const std::string> reads() const noexcept { return names_; }

  // "header X-Api-Key". Equal for two that give equal requests equal names, but for functions that say the same.
  [[nodiscard]] std::string what() const;

  // Of functions: whether they are copies of one another.
  friend bool operator==(const Principal&, const Principal&) = default;

 private:
  enum class Kind : std::uint8_t { unsaid, headers, given, shared, source };
  explicit Principal(Kind kind) noexcept : kind_(kind) {}

  Kind kind_;
  std::vector<std::string> names_;  // Of headers.
  std::string what_;                // Of a source, and where it is given.
  std::shared_ptr<const Source> source_;
};

}  // namespace once::http
