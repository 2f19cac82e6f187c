/* What the library's thread does (look.c). */
#ifndef GPUPROF_LOOK_H
#define GPUPROF_LOOK_H

/* One look at the listener: attaches, reads what is due, keeps within the budget, asks to detach. */
void look(void);

/* Attaches, for a listener who is expected and for a while counts as one; who calls has set ATTACHING. Before there is that thread. */
void look_expecting(void);

#endif
