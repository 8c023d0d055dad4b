#include "text/json_write.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "text/ascii.hpp"
#include "text/number.hpp"
#include "text/utf8.hpp"

namespace once::text::json {

namespace {

bool is_plain(EightBytes bytes) noexcept {
  return !bytes.any_below_blank() && !bytes.any('"') && !bytes.any('\\') && !bytes.any('\xED');
}

class Writer {
 public:
  Writer(const Style& style, std::string& out) : style_(style), out_(out) {}

  void value(const Value& v) {
    switch (v.kind()) {
      case Kind::null:
        out_ += "null";
        return;
      case Kind::boolean:
        out_ += v.truth() ? "true" : "false";
        return;
      case Kind::number:
        style_.number(v.text(), out_);
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

  void string(std::string_view text) {
    out_.reserve(out_.size() + text.size() + 2);
    out_ += '"';
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p != end) {
      const char* const start = p;
      while (style_.by_eight && end - p >= std::ptrdiff_t{EightBytes::size} && is_plain(EightBytes(p)))
        p += EightBytes::size;
      while (p != end && style_.plain[static_cast<unsigned char>(*p)]) ++p;
      out_.append(start, p);
      if (p != end) special(p);
    }
    out_ += '"';
  }

 private:
  void special(const char*& p) {
    const char* const start = p;
    const char32_t c = next_code_point(p);
    if (c >= 0xD800 && c < 0xE000) {
      if (style_.surrogate.empty()) {
        unit(c);
      } else {
        out_ += style_.surrogate;
      }
      return;
    }
    switch (c) {
      case '"':
        if (!style_.short_quote) break;
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
    if (c >= 0x80 && !style_.ascii) {
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
    for (const unsigned shift : {12U, 8U, 4U, 0U}) out_ += style_.digits[(u >> shift) & 15U];
  }

  void array(const Value& v) {
    out_ += '[';
    bool first = true;
    for (const Value& element : v.elements()) {
      if (!first) out_ += style_.spaced ? ", " : ",";
      first = false;
      value(element);
    }
    out_ += ']';
  }

  void object(const Value& v) {
    out_ += '{';
    bool first = true;
    const auto member = [&](const Member& m) {
      if (!first) out_ += style_.spaced ? ", " : ",";
      first = false;
      string(m.name);
      out_ += style_.spaced ? ": " : ":";
      value(m.value);
    };
    const auto in_order = [&](std::span<const Member*> members) {
      for (const Member* m : style_.order(members)) member(*m);
    };
    const auto members = v.members();
    if (style_.order == nullptr) {
      for (const Member& m : members) member(m);
    } else if (members.size() <= few) {
      std::array<const Member*, few> order;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
      const auto end =
          std::transform(members.begin(), members.end(), order.begin(), [](const Member& m) { return &m; });
      in_order(std::span(order.begin(), end));
    } else {
      std::vector<const Member*> order;
      order.reserve(members.size());
      for (const Member& m : members) order.push_back(&m);
      in_order(order);
    }
    out_ += '}';
  }

  static constexpr std::size_t few = 24;

  const Style& style_;
  std::string& out_;
};

}  // namespace

void append_number(std::string_view text, std::string& out) {
  if (is_integer_text(text) && text.size() <= 15 && text != "-0") {
    out += text;
  } else if (const double d = to_double(text); std::isfinite(d)) {
    append_ecmascript(d, out);
  } else {
    out += "null";  // As JSON.stringify does.
  }
}

std::span<const Member*> sort_members(std::span<const Member*> members) {
  std::ranges::sort(members, [](const Member* a, const Member* b) { return utf16_less(a->name, b->name); });
  return members;
}

std::string written(const Value& value, const Style& style) {
  std::string out;
  if (value.kind() == Kind::array || value.kind() == Kind::object) out.reserve(256);
  Writer(style, out).value(value);
  return out;
}

void append_quoted(std::string& out, std::string_view text) { Writer(canonical_style, out).string(text); }

std::string quoted(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

}  // namespace once::text::json
