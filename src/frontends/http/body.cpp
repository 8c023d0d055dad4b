#include "frontends/http/body.hpp"

#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "keys/inflate.hpp"
#include "text/ascii.hpp"
#include "text/header.hpp"
#include "text/percent.hpp"

namespace once::http {

namespace {

constexpr std::size_t max_encodings = 3;
constexpr std::size_t max_boundary_bytes = 70;  // RFC 2046, section 5.1.1.
constexpr int max_depth = 3;
constexpr std::string_view crlf = "\r\n";

bool inflate(std::string_view bytes, keys::Inflater::Format format, std::size_t max_bytes, std::string& out) {
  keys::Inflater inflater(format, max_bytes);
  std::string problem;
  do {
    if (!inflater.member(bytes, out, problem)) return false;
  } while (!bytes.empty() && format == keys::Inflater::Format::gzip);
  return bytes.empty();
}

// Of RFC 8878, or skippable. libzstd may read frames of versions before 0.8 too, with windows of any size.
bool begins_zstd_frame(std::string_view bytes) noexcept {
  if (bytes.size() < 4) return false;
  std::uint32_t magic = 0;
  for (std::size_t i = 4; i-- > 0;) magic = magic << 8U | static_cast<unsigned char>(bytes[i]);
  return magic == ZSTD_MAGICNUMBER || (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
}

// All frames. HTTP allows a window of 8 MiB (RFC 9659), so that is what one may make us allocate.
bool inflate_zstd(std::string_view bytes, std::size_t max_bytes, std::string& out) {
  constexpr int window_log = 23;
  struct FreeContext {
    void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
  };
  const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (!context || ZSTD_isError(ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, window_log)) != 0)
    return false;
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::string piece(ZSTD_DStreamOutSize(), '\0');
  std::size_t more = 1;  // 0: at the end of a frame, and all of it is out.
  bool is_full = true;
  for (bool is_at_start = true; in.pos < in.size || (more != 0 && is_full); is_at_start = more == 0) {
    if (is_at_start && !begins_zstd_frame(bytes.substr(in.pos))) return false;
    ZSTD_outBuffer to{piece.data(), piece.size(), 0};
    more = ZSTD_decompressStream(context.get(), &to, &in);
    if (ZSTD_isError(more) != 0 || to.pos > max_bytes - out.size()) return false;
    out.append(piece, 0, to.pos);
    is_full = to.pos == to.size;
  }
  return more == 0;
}

// The first of "a; b=c" and its parameters (RFC 9110, section 5.6.6). Empty: malformed, a name twice, or too many.
std::optional<MediaType> with_parameters(std::string_view text) {
  MediaType out;
  const auto end = text.find(';');
  out.name = text::lower(text::trim(text.substr(0, end)));
  if (out.name.empty()) return std::nullopt;
  text.remove_prefix(end == std::string_view::npos ? text.size() : end);
  while (!text.empty()) {
    text = text::trim(text.substr(1));  // Behind the semicolon.
    if (text.empty()) break;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || !text::is_token(text.substr(0, equals))) return std::nullopt;
    MediaType::Parameter parameter{.name = text::lower(text.substr(0, equals)), .value = {}};
    text.remove_prefix(equals + 1);
    if (text.starts_with('"')) {
      // Some clients write a backslash as it is, others put one before it. So the text between the quotes counts.
      std::size_t at = 1;
      while (at < text.size() && text[at] != '"') at += text[at] == '\\' && at + 1 < text.size() ? 2 : 1;
      if (at >= text.size()) return std::nullopt;
      parameter.value = text.substr(1, at - 1);
      text.remove_prefix(at + 1);
    } else {
      parameter.value = text.substr(0, text.find_first_of("; \t"));
      if (!text::is_token(parameter.value)) return std::nullopt;
      text.remove_prefix(parameter.value.size());
    }
    text = text::trim(text);
    if (!text.empty() && !text.starts_with(';')) return std::nullopt;
    // Nobody sends so many, and each is compared with all before it.
    constexpr std::size_t most_parameters = 16;
    if (out.parameters.size() == most_parameters ||
        std::ranges::find(out.parameters, parameter.name, &MediaType::Parameter::name) != out.parameters.end()) {
      return std::nullopt;
    }
    out.parameters.push_back(std::move(parameter));
  }
  return out;
}

const MediaType::Parameter* find(const MediaType& type, std::string_view name) noexcept {
  const auto found = std::ranges::find(type.parameters, name, &MediaType::Parameter::name);
  return found == type.parameters.end() ? nullptr : &*found;
}

// Texts with their lengths, so that different lists differ.
class Lengths {
 public:
  void add(std::string_view text) {
    out_ += std::to_string(text.size());
    out_ += ':';
    out_ += text;
  }
  void add(const MediaType& type, std::string_view without) {
    add(type.name);
    for (const MediaType::Parameter& parameter : type.parameters) {
      if (parameter.name == without) continue;
      add(parameter.name);
      add(parameter.value);
    }
    out_ += ';';
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

struct Part {
  std::optional<MediaType> disposition;
  std::optional<std::string_view> type;
  std::vector<std::pair<std::string, std::string_view>> others;  // Names in lower case.
  std::string_view bytes;
};

// The part between two boundaries: fields, an empty line, bytes. Empty: malformed.
std::optional<Part> part_of(std::string_view text) {
  Part part;
  for (;;) {
    const auto end = text.find(crlf);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + crlf.size());
    if (line.empty()) break;
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || !text::is_token(line.substr(0, colon))) return std::nullopt;
    const std::string name = text::lower(line.substr(0, colon));
    const std::string_view value = text::trim(line.substr(colon + 1));
    if (!text::is_field_text(value)) return std::nullopt;
    if (name == "content-disposition") {
      if (part.disposition) return std::nullopt;
      part.disposition = with_parameters(value);
      if (!part.disposition) return std::nullopt;
    } else if (name == "content-type") {
      if (part.type) return std::nullopt;
      part.type = value;
    } else if (name != "content-length") {  // Follows from the bytes.
      part.others.emplace_back(name, value);
    }
  }
  part.bytes = text;
  return part;
}

bool is_boundary(std::string_view text) noexcept {
  constexpr std::string_view marks = "'()+_,-./:=? ";
  return !text.empty() && text.size() <= max_boundary_bytes && !text.ends_with(' ') &&
         std::ranges::all_of(
             text, [&](char c) { return text::is_letter_or_digit(c) || marks.find(c) != std::string_view::npos; });
}

// Calls `take` for each part, until it returns false. `around`: what precedes the first boundary, and follows the last
// one (RFC 2046, section 5.1.1). False: malformed, or `take` did.
bool for_each_part(const MediaType& type, std::string_view content, const std::function<bool(const Part&)>& take,
                   std::pair<std::string_view, std::string_view>& around) {
  const MediaType::Parameter* const boundary = find(type, "boundary");
  if (boundary == nullptr || !is_boundary(boundary->value)) return false;
  const std::string line = "\r\n--" + std::string(boundary->value);
  if (content.starts_with(std::string_view(line).substr(crlf.size()))) {
    content.remove_prefix(line.size() - crlf.size());
  } else {
    const auto first = content.find(line);
    if (first == std::string_view::npos) return false;
    around.first = content.substr(0, first);
    content.remove_prefix(first + line.size());
  }
  for (;;) {
    const bool is_last = content.starts_with("--");
    if (is_last) content.remove_prefix(2);
    content.remove_prefix(std::min(content.find_first_not_of(" \t"), content.size()));
    if (is_last && content.empty()) return true;
    if (!content.starts_with(crlf)) return false;
    content.remove_prefix(crlf.size());
    if (is_last) {
      around.second = content;
      return true;
    }
    const auto end = content.find(line);
    if (end == std::string_view::npos) return false;
    const std::optional<Part> part = part_of(content.substr(0, end));
    if (!part || !take(*part)) return false;
    content.remove_prefix(end + line.size());
  }
}

bool add_parts(Lengths& out, const MediaType& type, std::string_view content, int depth) {
  const bool is_form = type.name == "multipart/form-data";
  out.add(type, "boundary");
  const auto add_part = [&](const Part& part) {
    const bool is_field = part.disposition && part.disposition->name == "form-data" && find(*part.disposition, "name");
    if (is_form && !is_field) return false;
    out.add("part");
    if (part.disposition) out.add(*part.disposition, {});
    for (const auto& [name, value] : part.others) {
      out.add("field");
      out.add(name);
      out.add(value);
    }
    if (part.type) {
      const std::optional<MediaType> own = with_parameters(*part.type);
      if (own && own->is_multipart() && depth > 1) {
        Lengths inner;
        if (add_parts(inner, *own, part.bytes, depth - 1)) {
          out.add("parts");
          out.add(inner.take());
          return true;
        }
      }
      out.add("type");
      out.add(*part.type);
    }
    out.add("bytes");
    out.add(part.bytes);
    return true;
  };
  std::pair<std::string_view, std::string_view> around;
  if (!for_each_part(type, content, add_part, around)) return false;
  if (around.first.empty() && around.second.empty()) return true;
  out.add("around");
  out.add(around.first);
  out.add(around.second);
  return true;
}

}  // namespace

std::optional<std::string> inflated_body(const Request& request, std::size_t max_bytes) {
  std::vector<std::string_view> encodings;
  for (const HeaderView& header : request.headers) {
    if (!same_name(header.name, "Content-Encoding")) continue;
    for (const std::string_view member : text::list_members(header.value)) {
      if (!same_letters(member, "identity")) encodings.push_back(member);
    }
  }
  if (encodings.empty() || encodings.size() > max_encodings) return std::nullopt;
  std::string content;
  std::string_view bytes = request.body;
  for (std::size_t i = encodings.size(); i-- > 0;) {
    const bool is_gzip = same_letters(encodings[i], "gzip") || same_letters(encodings[i], "x-gzip");
    std::string out;
    if (same_letters(encodings[i], "zstd")) {
      if (!inflate_zstd(bytes, max_bytes, out)) return std::nullopt;
    } else if (is_gzip || same_letters(encodings[i], "deflate")) {
      const auto format = is_gzip ? keys::Inflater::Format::gzip : keys::Inflater::Format::zlib;
      if (!inflate(bytes, format, max_bytes, out)) return std::nullopt;
    } else {
      return std::nullopt;
    }
    content = std::move(out);
    bytes = content;
  }
  return content;
}

std::optional<MediaType> media_type_of(const Request& request) {
  const HeaderView* only = nullptr;
  for (const HeaderView& header : request.headers) {
    if (!same_name(header.name, "Content-Type")) continue;
    if (only != nullptr) return std::nullopt;
    only = &header;
  }
  return only == nullptr ? std::nullopt : with_parameters(only->value);
}

std::optional<std::string> parts_text(const MediaType& type, std::string_view content) {
  Lengths out;
  if (!type.is_multipart() || !add_parts(out, type, content, max_depth)) return std::nullopt;
  return out.take();
}

std::vector<std::string> pair_values(std::string_view text, std::string_view name) {
  const auto decoded = [](std::string_view part) {
    std::string blanks(part);
    std::ranges::replace(blanks, '+', ' ');
    return text::percent_decoded(blanks, [](char) { return true; });
  };
  std::vector<std::string> values;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('&', at), text.size());
    const std::string_view pair = text.substr(at, end - at);
    const auto equals = pair.find('=');
    if (decoded(pair.substr(0, equals)) == name) {
      values.push_back(equals == std::string_view::npos ? std::string() : decoded(pair.substr(equals + 1)));
    }
    at = end + 1;
  }
  return values;
}

std::optional<std::vector<std::string>> form_values(const MediaType& type, std::string_view content,
                                                    std::string_view name) {
  if (type.name == "application/x-www-form-urlencoded") return pair_values(content, name);
  if (type.name != "multipart/form-data") return std::nullopt;
  std::vector<std::string> values;
  const auto take = [&](const Part& part) {
    const MediaType::Parameter* const own = part.disposition ? find(*part.disposition, "name") : nullptr;
    if (own != nullptr && own->value == name) values.emplace_back(part.bytes);
    return own != nullptr;
  };
  std::pair<std::string_view, std::string_view> around;
  if (!for_each_part(type, content, take, around) || !around.first.empty() || !around.second.empty()) {
    return std::nullopt;
  }
  return values;
}

}  // namespace once::http
