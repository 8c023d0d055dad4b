#include "keys/dialects/write.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "keys/dialects/lower_case.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::keys {

namespace {

using json::Kind;
using json::Member;
using json::Value;

constexpr std::string_view lower_digits = "0123456789abcdef";
constexpr std::string_view upper_digits = "0123456789ABCDEF";

// How strings are written.
struct Escapes {
  std::string_view digits;     // Of \uXXXX.
  std::string_view also;       // ASCII characters that are written as \uXXXX.
  bool ascii = false;          // Everything else outside 0x20 to 0x7E too.
  bool short_quote = true;     // \" rather than \u0022.
  std::string_view surrogate;  // What a lone surrogate becomes; empty: its escape.
  // The bytes that are copied without a look at their neighbours.
  std::array<bool, 256> plain = plain_bytes(also, ascii);

  static constexpr std::array<bool, 256> plain_bytes(std::string_view also, bool ascii) {
    constexpr std::size_t surrogates_begin = 0xED;
    std::array<bool, 256> plain{};
    for (std::size_t byte = 0x20; byte < plain.size(); ++byte) plain[byte] = byte < 0x7F || !ascii;
    plain[surrogates_begin] = false;
    for (const char c : {'"', '\\'}) plain[static_cast<unsigned char>(c)] = false;
    for (const char c : also) plain[static_cast<unsigned char>(c)] = false;
    return plain;
  }
};

constexpr Escapes ecmascript{.digits = lower_digits};
constexpr Escapes python_escapes{.digits = lower_digits, .ascii = true};
constexpr Escapes jackson{.digits = upper_digits, .surrogate = "?"};
// JavaScriptEncoder.Default of System.Text.Json, which lets through only what is safe inside HTML.
constexpr Escapes dotnet{
    .digits = upper_digits, .also = "&'+<>`", .ascii = true, .short_quote = false, .surrogate = "\\uFFFD"};

class Writer {
 public:
  Writer(Dialect dialect, bool spaced) : dialect_(dialect), spaced_(spaced), escapes_(escapes_of(dialect)) {}

  void value(const Value& v) {
    switch (v.kind()) {
      case Kind::null:
        out_ += "null";
        return;
      case Kind::boolean:
        out_ += v.truth() ? "true" : "false";
        return;
      case Kind::number:
        number(v.text());
        return;
      case Kind::string:
        string(v.text());
        return;
      case Kind::array:
        array(v);
        return;
      case Kind::object:
        object(v);
        return;
    }
  }

  void number(std::string_view text) {
    switch (dialect_) {
      case Dialect::native:
      case Dialect::powertools_typescript: {
        const bool small = text::is_integer_text(text) && text.size() <= 15;
        if (small && text != "-0") {
          out_ += text;
          return;
        }
        const double d = text::to_double(text);
        if (!std::isfinite(d)) {
          out_ += "null";  // JSON.stringify; the native rules have refused it.
        } else {
          text::append_ecmascript(d, out_);
        }
        return;
      }
      case Dialect::powertools_python:
      case Dialect::powertools_java:
        if (text::is_integer_text(text)) {
          out_ += text == "-0" ? "0" : text;
          return;
        }
        if (dialect_ == Dialect::powertools_python) {
          text::append_python(text::to_double(text), out_);
        } else if (const double d = text::to_double(text); std::isfinite(d)) {
          text::append_java(d, out_);
        } else {
          out_ += '"';
          text::append_java(d, out_);
          out_ += '"';
        }
        return;
      case Dialect::powertools_dotnet:
        out_ += text;
        return;
    }
  }

  // A string that is hashed as it is, without quotes.
  void bare(std::string_view text) {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p != end) {
      const char* const start = p;
      const char32_t c = text::next_code_point(p);
      if (c >= 0xD800 && c < 0xE000) {
        out_ += dialect_ == Dialect::powertools_java ? "?" : "\xEF\xBF\xBD";
      } else {
        out_.append(start, p);
      }
    }
  }

  std::string take() { return std::move(out_); }
  void reserve(std::size_t bytes) { out_.reserve(bytes); }

 private:
  static const Escapes& escapes_of(Dialect dialect) {
    switch (dialect) {
      case Dialect::powertools_python:
        return python_escapes;
      case Dialect::powertools_java:
        return jackson;
      case Dialect::powertools_dotnet:
        return dotnet;
      case Dialect::native:
      case Dialect::powertools_typescript:
        break;
    }
    return ecmascript;
  }

  void string(std::string_view text) {
    out_.reserve(out_.size() + text.size() + 2);
    out_ += '"';
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p != end) {
      const char* const start = p;
      while (p != end && escapes_.plain[static_cast<unsigned char>(*p)]) ++p;
      out_.append(start, p);
      if (p != end) special(p);
    }
    out_ += '"';
  }

  void special(const char*& p) {
    const char* const start = p;
    const char32_t c = text::next_code_point(p);
    if (c >= 0xD800 && c < 0xE000) {
      if (escapes_.surrogate.empty()) {
        unit(c);
      } else {
        out_ += escapes_.surrogate;
      }
      return;
    }
    switch (c) {
      case '"':
        if (!escapes_.short_quote) break;
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\f':
        out_ += "\\f";
        return;
      case '\r':
        out_ += "\\r";
        return;
      default:
        break;
    }
    if (c >= 0x80 && !escapes_.ascii) {
      out_.append(start, p);
    } else if (c < 0x10000) {
      unit(c);
    } else {
      unit(0xD800 + ((c - 0x10000) >> 10U));
      unit(0xDC00 + ((c - 0x10000) & 0x3FFU));
    }
  }

  void unit(std::uint32_t u) {
    out_ += "\\u";
    for (const unsigned shift : {12U, 8U, 4U, 0U}) out_ += escapes_.digits[(u >> shift) & 15U];
  }

  void array(const Value& v) {
    out_ += '[';
    bool first = true;
    for (const Value& element : v.elements()) {
      if (!first) out_ += spaced_ ? ", " : ",";
      first = false;
      value(element);
    }
    out_ += ']';
  }

  void object(const Value& v) {
    out_ += '{';
    bool first = true;
    const auto member = [&](const Member& m) {
      if (!first) out_ += spaced_ ? ", " : ",";
      first = false;
      string(m.name);
      out_ += spaced_ ? ": " : ":";
      value(m.value);
    };
    const auto members = v.members();
    if (!sorted_ || members.size() < 2) {
      const bool hides_proto = sorted_ && dialect_ == Dialect::powertools_typescript;
      for (const Member& m : members) {
        if (!hides_proto || m.name != "__proto__") member(m);
      }
    } else if (members.size() <= few) {
      std::array<const Member*, few> order;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
      const auto end =
          std::transform(members.begin(), members.end(), order.begin(), [](const Member& m) { return &m; });
      sort(std::span(order.begin(), end), member);
    } else {
      std::vector<const Member*> order;
      order.reserve(members.size());
      for (const Member& m : members) order.push_back(&m);
      sort(std::span(order), member);
    }
    out_ += '}';
  }

  template <class Write>
  void sort(std::span<const Member*> order, const Write& write) {
    if (dialect_ == Dialect::powertools_typescript) {
      sort_typescript(order);
    } else if (dialect_ == Dialect::native) {
      insertion_or_sort(order, [](const Member* a, const Member* b) { return text::utf16_less(a->name, b->name); });
    } else {
      // By code point, which in UTF-8 is by byte, surrogates included.
      insertion_or_sort(order, [](const Member* a, const Member* b) { return a->name < b->name; });
    }
    for (const Member* m : order) {
      if (dialect_ != Dialect::powertools_typescript || m->name != "__proto__") write(*m);
    }
  }

  template <class Less>
  static void insertion_or_sort(std::span<const Member*> order, const Less& less) {
    std::sort(order.begin(), order.end(), less);
  }

  // By lower-cased name, equal ones as they came; then what ECMAScript does to any object: array indices first, by
  // number, and an assignment to __proto__ makes no member (left out by the caller).
  static void sort_typescript(std::span<const Member*> order) {
    const auto ascii = [](const Member* m) {
      return std::ranges::all_of(m->name, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    };
    if (std::ranges::all_of(order, ascii)) {
      std::ranges::stable_sort(order, [](const Member* a, const Member* b) {
        return std::ranges::lexicographical_compare(a->name, b->name, {}, lower_ascii, lower_ascii);
      });
    } else {
      std::vector<std::pair<std::string, const Member*>> lowered;
      lowered.reserve(order.size());
      for (const Member* m : order) lowered.emplace_back(to_lower(m->name), m);
      std::ranges::stable_sort(lowered,
                               [](const auto& a, const auto& b) { return text::utf16_less(a.first, b.first); });
      std::ranges::transform(lowered, order.begin(), [](const auto& entry) { return entry.second; });
    }
    const auto index = [](const Member* m) { return text::array_index(m->name); };
    const auto has_index = [&](const Member* m) { return index(m).has_value(); };
    if (std::ranges::none_of(order, has_index)) return;
    const auto rest = std::ranges::stable_partition(order, has_index);
    std::ranges::sort(order.first(order.size() - rest.size()), {}, [&](const Member* m) { return *index(m); });
  }

  static char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

  static constexpr std::size_t few = 24;

  Dialect dialect_;
  bool spaced_;
  const Escapes& escapes_;
  bool sorted_ = dialect_ != Dialect::powertools_java && dialect_ != Dialect::powertools_dotnet;
  std::string out_;

 public:
  void keep_order() { sorted_ = false; }
};

}  // namespace

std::string hashed_text(const Value& value, Dialect dialect) {
  Writer writer(dialect, dialect == Dialect::powertools_python);
  if (value.kind() == Kind::array || value.kind() == Kind::object) writer.reserve(256);
  if (dialect == Dialect::powertools_java) {
    if (value.kind() == Kind::string) {
      writer.bare(value.text());
      return writer.take();
    }
    if (value.kind() == Kind::number && !text::is_integer_text(value.text())) {
      std::string out;
      text::append_java(text::to_double(value.text()), out);  // Infinity has no quotes here.
      return out;
    }
  }
  if (dialect == Dialect::powertools_dotnet) {
    if (value.kind() == Kind::string) {
      writer.bare(value.text());
      return writer.take();
    }
    if (value.is_null()) return {};
    if (value.kind() == Kind::boolean) return value.truth() ? "True" : "False";
  }
  writer.value(value);
  return writer.take();
}

std::string json_text(const Value& value, Dialect dialect) {
  Writer writer(dialect, false);
  if (dialect != Dialect::native) writer.keep_order();
  writer.value(value);
  return writer.take();
}

}  // namespace once::keys
