#include "frontends/lambda/batch/event_records.hpp"

#include <string>

#include <once/error.hpp>
#include <once/frontends/lambda/idempotent.hpp>

namespace once::lambda {

namespace {

// Walks over a text that is known to be valid JSON.
class TextWalk {
 public:
  explicit TextWalk(std::string_view text) : text_(text) {}

  // Calls each(name, value) with the texts of an object's members, names without their quotes.
  template <class Each>
  void members(Each&& each) {
    if (!enter('{')) return;
    while (!leave('}')) {
      const std::string_view name = value();
      skip_blanks();
      take();  // ':'
      each(name.size() < 2 ? name : name.substr(1, name.size() - 2), value());
    }
  }

  template <class Each>
  void elements(Each&& each) {
    if (!enter('[')) return;
    while (!leave(']')) each(value());
  }

 private:
  [[nodiscard]] char here() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
  void take() noexcept { at_ += at_ < text_.size() ? 1 : 0; }

  void skip_blanks() {
    while (here() == ' ' || here() == '\n' || here() == '\r' || here() == '\t') ++at_;
  }
  bool enter(char open) {
    skip_blanks();
    if (here() != open) return false;
    ++at_;
    return true;
  }
  bool leave(char close) {
    skip_blanks();
    if (here() == ',') ++at_;
    skip_blanks();
    return at_ >= text_.size() || here() == close;
  }

  void string() {
    for (take(); at_ < text_.size() && here() != '"'; take()) {
      if (here() == '\\') take();
    }
    take();
  }

  std::string_view value() {
    skip_blanks();
    const std::size_t from = at_;
    std::size_t depth = 0;
    do {
      switch (here()) {
        case '"':
          string();
          break;
        case '{':
        case '[':
          ++depth;
          take();
          break;
        case '}':
        case ']':
          --depth;
          take();
          break;
        default:
          take();
          if (depth == 0) scalar();
      }
    } while (depth > 0 && at_ < text_.size());
    return text_.substr(from, at_ - from);
  }
  void scalar() {
    constexpr std::string_view ends = ",]} \n\r\t";
    while (at_ < text_.size() && ends.find(here()) == std::string_view::npos) ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

void refuse_batch(std::string_view service, std::string_view why) {
  throw FunctionError(std::string(errors::invalid_event),
                      "this function takes batches of " + std::string(service) + ": " + std::string(why) +
                          ". Check the event source mapping, or who invokes the function.");
}

std::string_view member_text(std::string_view object, std::string_view name) {
  std::string_view found;
  TextWalk(object).members([&](std::string_view member, std::string_view value) {
    if (member == name) found = value;
  });
  return found;
}

std::vector<EventRecord> event_records(std::string_view event, std::pmr::memory_resource& arena,
                                       std::string_view service) {
  namespace json = text::json;
  json::Value tree;
  try {
    // Lenient, because one faulty record must not make the others fail: each is read strictly later.
    tree = json::parse(event, {.unique_names = false, .exact_numbers = false, .lone_surrogates = true}, arena,
                       "the event");
  } catch (const Exception& error) {
    refuse_batch(service, error.what());
  }
  const json::Value records = tree.member("Records");
  if (records.kind() != json::Kind::array) refuse_batch(service, "the event has no array 'Records'");
  std::vector<EventRecord> out;
  out.reserve(records.elements().size());
  TextWalk(member_text(event, "Records")).elements([&](std::string_view text) { out.push_back({text, {}}); });
  if (out.size() != records.elements().size()) {
    refuse_batch(service, "the name 'Records' is written with escapes");
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].lenient = records.elements()[i];
    if (out[i].lenient.kind() != json::Kind::object) {
      refuse_batch(service, "record " + std::to_string(i) + " of the event is not an object");
    }
  }
  return out;
}

}  // namespace once::lambda
