// SPDX-License-Identifier: MIT OR GPL-2.0
// The trace point of the driver's Xid reports, in a module of its own: without it the stand-in for nvidia.ko is an older driver.
#include <linux/module.h>
#define CREATE_TRACE_POINTS
#include "xid_trace.h"

extern void (*glake_reported)(struct pci_dev *dev, u32 code, const char *text);

static void reported(struct pci_dev *dev, u32 code, const char *text)
{
    trace_nvidia_dev_xid(dev, code, text);
}

static int __init xid_init(void)
{
    glake_reported = reported;
    return 0;
}

static void __exit xid_exit(void)
{
    glake_reported = NULL;
}

module_init(xid_init);
module_exit(xid_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("The trace point of Xid reports, for tests without a GPU");
