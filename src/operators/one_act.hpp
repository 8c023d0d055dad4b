// POST …/resolve, …/release and …/extend, DELETE …: an operator's change of one record, as the commands make it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include <once/frontends/http/message.hpp>
#include <once/operate.hpp>

#include "operators/changes.hpp"
#include "operators/console.hpp"
#include "operators/requests.hpp"
#include "operators/service.hpp"
#include "operators/store_access.hpp"

namespace once::operators {

// reconcile: nothing is changed, the service is asked.
enum class OneAct : std::uint8_t { resolve, release, extend, remove, reconcile };

// Who changes a record, if neither a session nor the body says it.
inline constexpr std::string_view no_session_name = "the operators' API";

std::string_view to_string(OneAct act);
std::optional<OneAct> act_from_string(std::string_view word);

// An act that was asked for, whatever the record.
struct AskedAct {
  operate::Reason reason;
  Act act;
  nlohmann::ordered_json line;  // What the lines about it say besides: as, reconciled, force.
};
// Takes its members. Throws Exception(misuse) for those that are missing or wrong. `service` must outlive the act.
AskedAct asked_act(Members& members, OneAct act, const Caller& caller, const Service& service);

// The member `who`; in a session it is the session's name. Throws Exception(misuse).
std::string who_of(Members& members, const Caller& caller);
// If-Match. An answer refuses the request. Throws Exception(misuse) for one that is wrong.
std::optional<http::Answer> take_condition(const http::Request& request, Tag& seen);
// A problem with the record as it is, and its ETag.
http::Answer refusal(const Changed& changed, std::string_view name, unsigned status, std::string_view title);

// The line on standard error that stays of a removal: other acts keep who and why in the record.
void say_removed(const std::string& stored_key, const operate::Reason& reason);

// Blocks. Throws Exception(misuse) for a wrong request.
http::Answer act_on_one(const StoreAccess& access, const Service& service, const http::Request& request,
                        const Caller& caller, std::string stored_key, OneAct act);

}  // namespace once::operators
