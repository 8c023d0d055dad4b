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

namespace {

namespace json = text::json;

json::Value parse_batch(std::string_view event, std::pmr::memory_resource& arena, std::string_view service) {
  try {
    // Lenient, because one faulty record must not make the others fail: each is read strictly later.
    return json::parse(event, {.unique_names = false, .exact_numbers = false, .lone_surrogates = true}, arena,
                       "the event");
  } catch (const Exception& error) {
    refuse_batch(service, error.what());
  }
}

// Appends the elements of the array that `text` has and that was parsed as `array`.
void append_records(std::string_view text, const json::Value& array, std::string_view service,
                    std::vector<EventRecord>& out) {
  std::vector<std::string_view> texts;
  texts.reserve(array.elements().size());
  TextWalk(text).elements([&](std::string_view element) { texts.push_back(element); });
  if (texts.size() != array.elements().size()) refuse_batch(service, "a name of the event is written with escapes");
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (array.elements()[i].kind() != json::Kind::object) {
      refuse_batch(service, "record " + std::to_string(out.size()) + " of the event is not an object");
    }
    out.push_back({texts[i], array.elements()[i]});
  }
}

// True if it is a bare array, whose elements are then in `out`.
bool append_piped(std::string_view event, const json::Value& tree, std::string_view service, EventRecords& out) {
  if (tree.kind() != json::Kind::array) return false;
  out.piped = true;
  append_records(event, tree, service, out.records);
  return true;
}

}  // namespace

EventRecords event_records(std::string_view event, std::pmr::memory_resource& arena, std::string_view service) {
  const json::Value tree = parse_batch(event, arena, service);
  EventRecords out;
  if (append_piped(event, tree, service, out)) return out;
  const json::Value records = tree.member("Records");
  if (records.kind() != json::Kind::array) refuse_batch(service, "the event is no array and has no array 'Records'");
  append_records(member_text(event, "Records"), records, service, out.records);
  return out;
}

EventRecords grouped_records(std::string_view event, std::pmr::memory_resource& arena, std::string_view service,
                             json::Value& tree) {
  tree = parse_batch(event, arena, service);
  EventRecords out;
  if (append_piped(event, tree, service, out)) return out;
  const json::Value groups = tree.member("records");
  if (groups.kind() != json::Kind::object) refuse_batch(service, "the event is no array and has no object 'records'");
  const std::string_view text = member_text(event, "records");
  for (const json::Member& group : groups.members()) {
    if (group.value.kind() != json::Kind::array) {
      refuse_batch(service, "'" + std::string(group.name) + "' of the event is not an array");
    }
    append_records(member_text(text, group.name), group.value, service, out.records);
  }
  return out;
}

}  // namespace once::lambda
