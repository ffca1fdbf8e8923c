// SPDX-License-Identifier: MIT OR GPL-2.0
// The trace point nvidia:nvidia_dev_xid with the fields that the driver's has: dev, error_code, msg.
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nvidia

#if !defined(GLAKE_XID_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define GLAKE_XID_TRACE_H
#include <linux/pci.h>
#include <linux/tracepoint.h>

TRACE_EVENT(nvidia_dev_xid,
    TP_PROTO(struct pci_dev *device, u32 code, const char *text),
    TP_ARGS(device, code, text),
    TP_STRUCT__entry(
        __string(dev, pci_name(device))
        __field(u32, error_code)
        __string(msg, text)
    ),
    TP_fast_assign(
        __assign_str(dev);
        __entry->error_code = code;
        __assign_str(msg);
    ),
    TP_printk("%s %u %s", __get_str(dev), __entry->error_code, __get_str(msg))
);
#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE xid_trace
#include <trace/define_trace.h>
