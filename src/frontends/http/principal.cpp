#include <once/frontends/http/principal.hpp>

#include <cstddef>
#include <utility>

#include <once/error.hpp>

#include "frontends/http/unstable.hpp"
#include "text/ascii.hpp"

namespace once::http {

namespace {

void append_part(std::string& out, std::string_view part) {
  out += std::to_string(part.size());
  out += ':';
  out += part;
}

constexpr std::string_view why_unstable =
    "The header that says who the client is holds a token or a signature that is new in each request, so a retry would "
    "run a second time. Nothing was carried out. The service's operator should use a verified claim of the token "
    "(principal-jwt), or a header that stays the same.";

}  // namespace

Principal Principal::headers(std::vector<std::string> names) {
  if (names.empty()) {
    throw Exception(ErrorKind::misuse,
                    "http::Principal::headers() needs a header: without one, all clients would be one. If you mean "
                    "that, use Principal::shared()");
  }
  Principal made(Kind::headers);
  made.names_ = std::move(names);
  return made;
}

Principal Principal::given(std::string what) {
  Principal made(Kind::given);
  made.what_ = std::move(what);
  return made;
}
Principal Principal::shared() { return Principal(Kind::shared); }
Principal Principal::unsaid() { return Principal(Kind::unsaid); }

Principal Principal::source(std::string what, std::vector<std::string> reads, Source who) {
  if (!who) throw Exception(ErrorKind::misuse, "http::Principal was given an empty function");
  Principal made(Kind::source);
  made.names_ = std::move(reads);
  made.what_ = std::move(what);
  made.source_ = std::make_shared<const Source>(std::move(who));
  return made;
}

Principal Principal::function(std::string what, std::function<std::string(const Request&)> name_of) {
  if (!name_of) throw Exception(ErrorKind::misuse, "http::Principal was given an empty function");
  return source(std::move(what), {}, [name_of = std::move(name_of)](const Request& request) {
    Who who;
    who.name = name_of(request);
    who.kind = who.name.empty() ? Who::Kind::missing : Who::Kind::known;
    return who;
  });
}

Who Principal::who(const Request& request) const {
  Who who;
  switch (kind_) {
    case Kind::unsaid:
      break;
    case Kind::shared:
      who.kind = Who::Kind::known;
      break;
    case Kind::given:
      who.name = request.principal;
      if (!who.name.empty()) who.kind = Who::Kind::known;
      break;
    case Kind::source:
      return (*source_)(request);
    case Kind::headers:
      for (const std::string& name : names_) {
        std::size_t lines = 0;
        for (const HeaderView& header : request.headers) {
          if (!same_name(header.name, name)) continue;
          const std::string_view value = text::trim(header.value);
          if (is_unstable(value))
            return {.kind = Who::Kind::unstable, .name = {}, .why = why_unstable, .challenge = {}};
          if (value.empty()) continue;
          append_part(who.name, value);
          ++lines;
        }
        if (lines == 0) return {};
        who.name += ';';  // No length begins with it, so it separates the headers.
      }
      who.kind = Who::Kind::known;
      break;
  }
  return who;
}

std::string Principal::what() const {
  switch (kind_) {
    case Kind::unsaid:
      return "not said";
    case Kind::shared:
      return "one for all clients";
    case Kind::given:
    case Kind::source:
      return what_;
    case Kind::headers:
      break;
  }
  std::string text = "header";
  for (const std::string& name : names_) {
    text += ' ';
    text += text::lower(name);
  }
  return text;
}

}  // namespace once::http
