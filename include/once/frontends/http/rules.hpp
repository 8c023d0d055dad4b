// The rules of idempotent HTTP: which requests are protected, what their key is, which answers are stored, and what a
// request gets that may not run. Pure: requests, decisions and records come in, answers come out. The part that talks
// to a store is once/frontends/http/endpoint.hpp.
//
// Follows draft-ietf-httpapi-idempotency-key-header-07 (an expired draft, not an RFC). docs/http.md describes all of it
// for operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/http/principal.hpp>
#include <once/policy.hpp>
#include <once/record.hpp>

namespace once::http {

// On every answer that is a replay, with the value "true".
inline constexpr std::string_view replayed_header = "Idempotent-Replayed";

inline constexpr std::size_t max_client_key_bytes = 255;

// What happens to the claim when the answer has come.
enum class Fate : std::uint8_t {
  store,      // It is the operation's answer, and every retry gets it.
  release,    // Nothing was done: a retry may run.
  ambiguous,  // Whether something was done is not known: see Options::ambiguous.
};

std::string_view to_string(Fate fate) noexcept;

struct Options {
  // Whose a key is. There is no default: see once/frontends/http/principal.hpp. A request with a key but without its
  // principal is 400 principal-missing; 401 with `challenge`.
  Principal principal;

  bool protect = true;  // false: all requests pass through unprotected and untouched, whatever else is said here.

  // Requests with other methods pass through unprotected and untouched. In capitals: upper and lower case differ
  // (RFC 9110, section 9.1). Because servers differ, one in another case ("patch", as fetch() of browsers sends it on
  // request) is 400 method-unclear.
  std::vector<std::string> methods{"POST", "PATCH"};

  // Names the operation: a key's namespace is scope, method, route and principal. Empty: the path of the request, so
  // that
  // "/orders/1/pay" and "/orders/2/pay" are two. No spaces, at most 128 bytes.
  std::string route;

  std::string scope;  // A prefix of all keys, at most 128 bytes. Empty: EngineOptions::scope.

  // Where the key is. The header: a String of RFC 9651 ("quoted") or the bare key. The field: JMESPath over the body,
  // which must be JSON then; selects a string or a number; the header is ignored if this is set.
  std::string key_header = "Idempotency-Key";
  std::string key_field;

  // The WWW-Authenticate of a 401: "Bearer realm=\"pay\"". Empty: requests without their principal are 400, except
  // where the principal has a challenge of its own, as that of a JWT does.
  std::string challenge;

  // What a request must have in common with the first one of its key, beside method, route and path. Else 422.
  std::vector<std::string> fingerprint_headers;
  bool fingerprint_host = true;  // That of the target, or of the header Host, without its port, in any case of letters.
  bool fingerprint_query = true;
  bool fingerprint_body = true;  // Byte by byte.

  std::size_t max_body_bytes = std::size_t{1024} * 1024;    // Of a request with a key. Longer ones: 413.
  std::size_t max_answer_bytes = std::size_t{1024} * 1024;  // Of an answer's body. A longer one leaves a tombstone.

  // What happens to an operation that may or may not have acted: its answer was 502, 503 or 504, its handler threw, the
  // process died. hold: it is not rerun, and retries get 409 until an operator decides (`once resolve`). takeover: a
  // retry reruns it once the lease has expired. Overrides Policy::on_lapse, which asks the same.
  OnLapse ambiguous = OnLapse::hold;

  // What happens to it when the handler throws, if you can say more: an exception's type by EngineOptions::throw_rule
  // comes first, then this. store: the 500 is kept and replayed. Empty: as `ambiguous` says. Policy::on_throw is not
  // used.
  std::optional<OnThrow> on_throw;

  // Overrides for single statuses, 100 to 599. Default: 2xx, 3xx and 4xx are stored except 401, 403, 407, 408, 409,
  // 421, 425 and 429, which release; 500, 501 and 505 are stored; all else is ambiguous. So is 503, which proxies also
  // send for connections that broke after the request was sent. If a service's own 503 means that nothing was done, say
  // so here.
  std::map<unsigned, Fate> fates;

  // Headers that are not stored, in addition to those that never are: see once/frontends/http/stored_answer.hpp.
  std::vector<std::string> never_store;

  // What it leaves open is the engine's. on_missing_key: refuse unless said, which is 400. on_store_down:
  // run_unprotected fails open. on_conflict: fail unless said; wait holds the duplicates of a running request until its
  // answer is there. on_unrecorded: raise is 503.
  std::optional<Policy> policy;

  // Retry-After of a conflict is the rest of the lease, but at most this: most operations end long before. The 503 of a
  // failing store has exactly this. 1 s to 24 h, sent in whole seconds, rounded up.
  Millis retry_after{5'000};

  // Of a proxy: how long it waits for the head of the service's answer, 1 ms to 24 h. 0: as proxy::Timeouts says.
  // Adapters, which are the service, ignore it.
  Millis answer_timeout{0};

  // Where docs/http.md is published; a problem's `type` is this, '#' and the problem's name. Empty: "urn:once:problem:"
  // and the name. A URI without fragment, quotes or spaces.
  std::string docs_url;

  friend bool operator==(const Options&, const Options&) = default;
};

// The problems of RFC 9457 that answers without a result are. docs/http.md has a section for each.
enum class Problem : std::uint8_t {
  key_missing,         // 400
  key_invalid,         // 400
  keys_differ,         // 400
  body_unreadable,     // 400
  body_too_large,      // 413
  key_reused,          // 422
  in_progress,         // 409, Retry-After
  outcome_unknown,     // 409
  store_unavailable,   // 503, Retry-After
  record_unreadable,   // 500
  answer_not_kept,     // 410
  operation_failed,    // 500
  handler_failed,      // 500
  claim_lost,          // 409, Retry-After
  not_recorded,        // 503, Retry-After
  path_unclear,        // 400, of a Router
  method_unclear,      // 400
  principal_missing,   // 400; 401 with a challenge
  principal_invalid,   // 401
  principal_unstable,  // 400
};

std::string_view to_string(Problem problem) noexcept;  // "key-missing" …
unsigned status_of(Problem problem) noexcept;

// What a request is to the rules.
struct Examination {
  enum class Kind : std::uint8_t {
    pass,       // Not one of the methods: not protected.
    no_key,     // The key is optional and missing: runs unprotected.
    refuse,     // `answer` says why. Nothing may be run.
    operation,  // `operation` is what to ask the engine for. By examine_head(): read the body, then examine().
  };
  Kind kind = Kind::refuse;
  Answer answer;
  std::optional<once::Request> operation;
};

// The rules for one route, or for many with the same ones. Immutable; for any number of threads at a time.
class Rules {
 public:
  // Throws Exception(misuse) that names the member for options that cannot be: see there.
  explicit Rules(Options options);
  Rules(Rules&&) noexcept;
  Rules& operator=(Rules&&) noexcept;
  ~Rules();

  // The whole check, of a request whose body was read.
  [[nodiscard]] Examination examine(const Request& request) const;

  // The checks that need no body: `request.body` is ignored. A body that is longer than announced, or of unknown
  // length, is found by examine(), so stop reading at one byte over Options::max_body_bytes. Never gives an operation.
  // A principal that is costly to find is left to examine().
  [[nodiscard]] Examination examine_head(const Request& request) const;

  [[nodiscard]] Fate fate_of(unsigned status) const noexcept;

  // For every Begin except a claim.
  [[nodiscard]] Answer answer_for(const Begin& begin) const;

  // The answer to a retry that finds a record in state completed or failed. A result that is not a stored answer, as an
  // operator may have left one, becomes the body of a 200.
  [[nodiscard]] Answer replay(const Record& record) const;

  // Nothing of a request is ever in it. `retry_after`: for problems that have one; 0: Options::retry_after.
  [[nodiscard]] Answer problem(Problem problem, Millis retry_after = Millis{0}) const;

  // The stored forms, under this route's limits.
  [[nodiscard]] Result encode(const Answer& answer) const;
  [[nodiscard]] Result encode_tombstone(const Answer& head, std::uint64_t body_bytes) const;

  [[nodiscard]] const Options& options() const noexcept;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace once::http
