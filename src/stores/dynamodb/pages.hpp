// The operations over many records: pages of a list, and sweeps.
#pragma once

#include <cstddef>

#include "stores/dynamodb/service.hpp"

namespace once::stores::dynamodb {

// Operations that have begun; `done` is called with a page, or with a sweep's answer.
void list(const ServicePtr& service, ListQuery query, Callback<void(ListPage)> done);
void sweep(const ServicePtr& service, Time now, std::size_t limit, Callback<void(SweepAnswer)> done);

}  // namespace once::stores::dynamodb
