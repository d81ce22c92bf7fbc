# Thin conveniences for developers; everything here is one command of ./orb, which needs no make.
.PHONY: check lint test bench faults up

check: lint test

lint test up:
	./orb $@ $(ARGS)

# make faults SEED=7 ROUNDS=40; without either, the fault tests
faults:
	./orb faults $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

# make bench NAME="fetch --short"; without NAME, the list
bench:
	./orb bench $(NAME)
